//! The one request to the kernel that is changed.
//!
//! OVS asks for a link of kind "ovs_geneve" to find out whether tunnels are devices or ports of the datapath. Linux says
//! EOPNOTSUPP, upon which OVS would have the kernel make tunnel devices, which the switch does not see. Any other error means
//! ports. As a request to change that link, which does not exist, it is answered with ENODEV.

/// linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_SETLINK: u16 = 19;
const KIND: &[u8] = b"ovs_geneve";
/// Where a message's type is.
const TYPE: std::ops::Range<usize> = 4..6;

/// The request as it is to be sent, if it is the one.
pub(crate) fn changed(request: &[u8]) -> Option<Vec<u8>> {
    let kind = request.get(TYPE)?;
    let is_probe =
        kind == RTM_NEWLINK.to_ne_bytes() && request.windows(KIND.len()).any(|bytes| bytes == KIND);
    let mut changed = is_probe.then(|| request.to_vec())?;
    changed.get_mut(TYPE)?.copy_from_slice(&RTM_SETLINK.to_ne_bytes());
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_probe_is_changed() {
        let request = |kind: u16, name: &[u8]| {
            let mut bytes = vec![0; 32];
            bytes[TYPE].copy_from_slice(&kind.to_ne_bytes());
            bytes.extend(name);
            bytes
        };
        let probe = request(RTM_NEWLINK, KIND);
        let changed_probe = changed(&probe).expect("the probe");
        assert_eq!(changed_probe, request(RTM_SETLINK, KIND));
        assert_eq!(changed(&request(RTM_NEWLINK, b"vxlan")), None);
        assert_eq!(changed(&request(18, KIND)), None, "to be listed");
        assert_eq!(changed(&[]), None);
    }
}
