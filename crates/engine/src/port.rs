use std::fmt;

use lasthop_verdict::{Mac, PORTS_MAX, PortId, PortVlans, StormLimits, SwitchId};

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Unique name.
    pub name: String,
    /// The switch that it belongs to.
    pub switch: SwitchId,
    /// Static address; also told to the guest.
    pub mac: Option<Mac>,
    /// Largest packet in bytes that the guest is told to send; `None`: its own choice.
    pub mtu: Option<u16>,
    /// How much of what its guest sends may be flooded.
    pub storm: StormLimits,
    /// Queue pairs offered.
    pub queue_pairs: u16,
    /// Virtio features that may be offered; all by default.
    pub features_mask: u64,
    /// Whether its link is up: while it is not, nothing passes, either way.
    pub link_up: bool,
    /// VLANs that the port carries.
    pub vlans: PortVlans,
    /// Isolated ports talk to others only.
    pub is_isolated: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            switch: SwitchId::DEFAULT,
            mac: None,
            mtu: None,
            storm: StormLimits::default(),
            queue_pairs: 1,
            features_mask: u64::MAX,
            link_up: true,
            vlans: PortVlans::Any,
            is_isolated: false,
        }
    }
}

/// How far a port's guest has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// Nobody is attached.
    #[default]
    Waiting,
    /// A front end is attached, its driver does not run yet.
    Connected,
    /// Rings run.
    Running,
    /// A ring was stopped for the named error.
    Stopped(String),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => f.write_str("waiting for guest"),
            Self::Connected => f.write_str("connected"),
            Self::Running => f.write_str("running"),
            Self::Stopped(error) => write!(f, "stopped: {error}"),
        }
    }
}

/// What the control side knows of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortRecord {
    pub(crate) config: PortConfig,
    /// Whether a front end is attached.
    pub(crate) attached: bool,
    /// Negotiated virtio features.
    pub(crate) features: u64,
    /// The MTU in bytes that the front end said its guest has.
    pub(crate) guest_mtu: Option<u16>,
}

/// Port numbers in use. Number 0 is the switch's own port.
#[derive(Debug, Default)]
pub(crate) struct PortTable(Vec<Option<PortRecord>>);

impl PortTable {
    /// Gives the lowest free number to a new port.
    pub(crate) fn claim(&mut self, config: PortConfig) -> Option<PortId> {
        if self.0.is_empty() {
            self.0.push(None);
        }
        let free = self.0.iter().skip(1).position(Option::is_none).map(|index| index + 1);
        let index = free.unwrap_or(self.0.len());
        if index >= PORTS_MAX {
            return None;
        }
        if index == self.0.len() {
            self.0.push(None);
        }
        self.0[index] = Some(PortRecord { config, attached: false, features: 0, guest_mtu: None });
        Some(PortId(index as u16)) // below PORTS_MAX
    }

    pub(crate) fn release(&mut self, port: PortId) {
        if let Some(record) = self.0.get_mut(port.index()) {
            *record = None;
        }
    }

    pub(crate) fn get(&self, port: PortId) -> Option<&PortRecord> {
        self.0.get(port.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut PortRecord> {
        self.0.get_mut(port.index())?.as_mut()
    }

    pub(crate) fn records(&self) -> Vec<(PortId, PortRecord)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(index, record)| Some((PortId(index as u16), record.clone()?))).collect()
    }
}
