//! Ports as the control side configures them, and their numbers.

use std::fmt;

use lasthop_module_api::{PORTS_MAX, PortId, PortKind, PortPolicy, SwitchId};

use crate::EngineError;

/// The configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Unique name.
    pub name: String,
    /// The switch of the port.
    pub switch: SwitchId,
    /// The rules for its packets, for the module. The guest is told the static address, too.
    pub policy: PortPolicy,
    /// MTU in bytes that the guest is told; `None` for its own choice.
    pub mtu: Option<u16>,
    /// Largest total size of its guest's memory regions, in bytes.
    pub memory_bytes_max: u64,
    /// Queue pairs offered.
    pub queue_pairs: u16,
    /// Virtio features that may be offered; all bits by default.
    pub features_mask: u64,
    /// Whether its link is up; no packet passes a link that is down.
    pub link_up: bool,
    /// The kind of peer behind the port.
    pub kind: PortKind,
    /// Whether it is a tunnel port: its packets carry tunnel metadata.
    pub is_tunnel: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            switch: SwitchId::DEFAULT,
            policy: PortPolicy::default(),
            mtu: None,
            memory_bytes_max: lasthop_vhost::MEMORY_BYTES_MAX_DEFAULT,
            queue_pairs: 1,
            features_mask: u64::MAX,
            link_up: true,
            kind: PortKind::Inside,
            is_tunnel: false,
        }
    }
}

/// The state of a port's guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// No guest is attached; the next one may attach.
    #[default]
    Waiting,
    /// A front end is attached; its driver does not run yet.
    Connected,
    /// Rings are running.
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

/// A port as the control side knows it.
#[derive(Clone, Debug)]
pub(crate) struct PortRecord {
    pub(crate) config: PortConfig,
    /// Whether a front end is attached, or not completely detached yet.
    pub(crate) attached: bool,
    /// The port is being removed: no further change begins.
    is_leaving: bool,
    /// Negotiated virtio features.
    pub(crate) features: u64,
    /// The guest's MTU in bytes, if the front end reported it.
    pub(crate) guest_mtu: Option<u16>,
}

/// Port numbers in use. Number 0 is the switch's own port.
#[derive(Debug, Default)]
pub(crate) struct PortTable(Vec<Slot>);

/// A port number.
#[derive(Debug, Default)]
enum Slot {
    #[default]
    Free,
    Taken(PortRecord),
    /// The port is removed, its guest is not detached yet, and would stop another port's rings.
    Leaving,
}

impl PortTable {
    /// Gives the lowest free number to a new port.
    pub(crate) fn claim(&mut self, config: PortConfig) -> Option<PortId> {
        if self.0.is_empty() {
            self.0.push(Slot::Free);
        }
        let free = self.0.iter().skip(1).position(|slot| matches!(slot, Slot::Free)).map(|index| index + 1);
        let index = free.unwrap_or(self.0.len());
        if index >= PORTS_MAX {
            return None;
        }
        if index == self.0.len() {
            self.0.push(Slot::Free);
        }
        self.0[index] = Slot::Taken(PortRecord {
            config,
            attached: false,
            is_leaving: false,
            features: 0,
            guest_mtu: None,
        });
        Some(PortId(index as u16)) // below PORTS_MAX
    }

    /// Marks a port as being removed. Look-ups no longer find it. False if there is none.
    pub(crate) fn leave(&mut self, port: PortId) -> bool {
        let Some(Slot::Taken(record)) = self.0.get_mut(port.index()) else { return false };
        record.is_leaving = true;
        true
    }

    /// The ports that are marked as being removed.
    pub(crate) fn leaving(&self) -> Vec<PortId> {
        let is_leaving = |slot: &Slot| matches!(slot, Slot::Taken(record) if record.is_leaving);
        let numbered = self.0.iter().enumerate().filter(|(_, slot)| is_leaving(slot));
        numbered.map(|(index, _)| PortId(index as u16)).collect() // below PORTS_MAX
    }

    /// Removes a port. Its number is free once no guest is attached.
    pub(crate) fn release(&mut self, port: PortId) {
        if let Some(slot) = self.0.get_mut(port.index()) {
            let attached = matches!(slot, Slot::Taken(PortRecord { attached: true, .. }) | Slot::Leaving);
            *slot = if attached { Slot::Leaving } else { Slot::Free };
        }
    }

    /// Attaches a front end, one at a time. Returns the port's configuration.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`], [`EngineError::Attached`].
    pub(crate) fn attach(&mut self, port: PortId) -> Result<PortConfig, EngineError> {
        let record = self.get_mut(port).ok_or(EngineError::NoSuchPort(port))?;
        if std::mem::replace(&mut record.attached, true) {
            return Err(EngineError::Attached(port));
        }
        Ok(record.config.clone())
    }

    /// Notes that the front end is completely detached.
    pub(crate) fn detach(&mut self, port: PortId) {
        match self.0.get_mut(port.index()) {
            Some(Slot::Taken(record)) => {
                (record.attached, record.features, record.guest_mtu) = (false, 0, None);
            }
            Some(slot @ Slot::Leaving) => *slot = Slot::Free,
            Some(Slot::Free) | None => {}
        }
    }

    pub(crate) fn get(&self, port: PortId) -> Option<&PortRecord> {
        self.0.get(port.index())?.record()
    }

    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut PortRecord> {
        match self.0.get_mut(port.index())? {
            Slot::Taken(record) if !record.is_leaving => Some(record),
            Slot::Taken(_) | Slot::Free | Slot::Leaving => None,
        }
    }

    pub(crate) fn records(&self) -> Vec<(PortId, PortRecord)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(index, slot)| Some((PortId(index as u16), slot.record()?.clone()))).collect()
    }
}

impl Slot {
    fn record(&self) -> Option<&PortRecord> {
        match self {
            Self::Taken(record) if !record.is_leaving => Some(record),
            Self::Taken(_) | Self::Free | Self::Leaving => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(table: &mut PortTable) -> Option<u16> {
        table.claim(PortConfig::default()).map(|port| port.0)
    }

    #[test]
    fn a_number_is_given_again_when_both_its_port_and_its_guest_are_gone() {
        let mut table = PortTable::default();
        assert_eq!((claim(&mut table), claim(&mut table)), (Some(1), Some(2)));
        table.attach(PortId(1)).unwrap();
        table.leave(PortId(1));
        assert!(table.get(PortId(1)).is_none(), "it is not found");
        assert_eq!(claim(&mut table), Some(3), "nor given to another one");
        table.release(PortId(3));
        table.release(PortId(1));
        table.release(PortId(2));
        assert!(
            table.get(PortId(1)).is_none() && table.attach(PortId(1)).is_err() && table.records().is_empty()
        );
        assert_eq!((claim(&mut table), claim(&mut table)), (Some(2), Some(3)));
        table.detach(PortId(1));
        assert_eq!((claim(&mut table), claim(&mut table)), (Some(1), Some(4)));
    }

    #[test]
    fn one_guest_at_a_time() {
        let mut table = PortTable::default();
        let port = table.claim(PortConfig::default()).unwrap();
        table.attach(port).unwrap();
        table.get_mut(port).unwrap().features = 1;
        assert!(matches!(table.attach(port), Err(EngineError::Attached(_))));
        table.detach(port);
        assert_eq!(table.get(port).unwrap().features, 0);
        table.attach(port).unwrap();
        assert!(matches!(table.attach(PortId(0)), Err(EngineError::NoSuchPort(_))));
    }
}
