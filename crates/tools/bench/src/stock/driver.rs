//! The choices of a stock virtio driver, according to its log: features, and the functions that move packets.

use std::fmt;

use serde::Serialize;

/// Names of feature bits (virtio 1.3, 5.1.3 and 6).
const FEATURES: &[(u32, &str)] = &[
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (5, "MAC"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (15, "MRG_RXBUF"),
    (16, "STATUS"),
    (17, "CTRL_VQ"),
    (18, "CTRL_RX"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (32, "VERSION_1"),
    (34, "RING_PACKED"),
    (35, "IN_ORDER"),
];

/// The features that a driver negotiated with a back end, and the path that it chose because of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverChoice {
    /// Feature bits that both sides have.
    pub features: u64,
    /// Its receive path as the log names it, as in "mergeable buffer".
    pub rx_path: String,
    /// Its transmit path.
    pub tx_path: String,
}

impl DriverChoice {
    /// Parses a log of DPDK's virtio driver, for the first port in it; `None` if it reports no choice.
    pub(super) fn of_log(log: &str) -> Option<Self> {
        let features = log.split("features after negotiate = ").nth(1)?;
        let end = features.find(|sign: char| !sign.is_ascii_hexdigit())?;
        let features = u64::from_str_radix(&features[..end], 16).ok()?;
        Some(Self {
            features,
            rx_path: path(log, " Rx path on port")?,
            tx_path: path(log, " Tx path on port")?,
        })
    }
}

/// The text between "virtio: using " and `end`.
fn path(log: &str, end: &str) -> Option<String> {
    let line = log.lines().find(|line| line.contains(end))?;
    let words = line.split_once("virtio: using ")?.1.split_once(end)?.0;
    Some(words.to_owned())
}

impl fmt::Display for DriverChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rx path {}, tx path {}, features {:#x}", self.rx_path, self.tx_path, self.features)?;
        let names: Vec<String> = (0..64).filter(|bit| self.features >> bit & 1 == 1).map(feature).collect();
        write!(f, " ({})", names.join(" "))
    }
}

fn feature(bit: u32) -> String {
    let known = FEATURES.iter().find(|(number, _)| *number == bit);
    known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_driver_tells_its_choice() {
        let log = "\
virtio_ethdev_negotiate_features(): host_features before negotiate = 1100199a3
virtio_ethdev_negotiate_features(): features after negotiate = 910018020
set_rxtx_funcs(): virtio: using inorder Tx path on port 0
set_rxtx_funcs(): virtio: using mergeable buffer Rx path on port 0
";
        let choice = DriverChoice::of_log(log).expect("a choice");
        assert_eq!((choice.rx_path.as_str(), choice.tx_path.as_str()), ("mergeable buffer", "inorder"));
        let text = choice.to_string();
        assert!(
            text.contains("0x910018020 (MAC MRG_RXBUF STATUS INDIRECT_DESC VERSION_1 IN_ORDER)"),
            "{text}"
        );
        assert_eq!(DriverChoice::of_log("EAL: Detected CPU lcores: 2\n"), None);
        assert_eq!(feature(63), "bit 63");
    }
}
