//! Generates an address for a guest whose port has none, and for a tap.

use std::path::Path;

use lasthop_module_api::Mac;

/// The prefix of QEMU's and libvirt's guests.
const PREFIX: [u8; 3] = [0x52, 0x54, 0x00];

/// An address for the guest at the socket with this path: always the same, and different for each socket. Otherwise all
/// of QEMU's guests would have the same one.
pub fn of_socket(path: &Path) -> Mac {
    made_from(PREFIX, path.as_os_str().as_encoded_bytes())
}

/// FNV-1a: mixes a few names well enough, and does not change with the compiler.
pub fn made_from(prefix: [u8; 3], bytes: &[u8]) -> Mac {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [_, _, _, _, _, a, b, c] = (hash ^ hash >> 32).to_be_bytes();
    let [x, y, z] = prefix;
    Mac([x, y, z, a, b, c])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_addresses_are_stable_and_differ() {
        assert_eq!(made_from(PREFIX, b"/run/lasthop/vm1.sock"), made_from(PREFIX, b"/run/lasthop/vm1.sock"));
        let addresses: std::collections::HashSet<Mac> =
            (0..100).map(|n| made_from(PREFIX, format!("/run/lasthop/vm{n}.sock").as_bytes())).collect();
        assert_eq!(addresses.len(), 100);
        assert!(addresses.iter().all(|mac| !mac.is_group()));
    }
}
