//! The devices that the kernel has reported.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{LinkDevice, LinkMessage};

/// All devices of the network namespace.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By index, with the round in which the device was reported last.
    devices: BTreeMap<u32, (LinkDevice, u32)>,
    round: u32,
    /// Whether all were reported at least once.
    is_complete: bool,
}

impl Table {
    /// Begins a round: devices that are not reported in it are gone.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Handles an event; adds the names of the devices in it to `names`.
    pub(super) fn take(&mut self, news: LinkMessage, names: &mut BTreeSet<String>) {
        match news {
            LinkMessage::Device(device) => {
                let entry = (device.clone(), self.round);
                let old = self.devices.insert(device.index, entry);
                if old.as_ref().is_none_or(|(old, _)| *old != device) {
                    names.extend(old.map(|(old, _)| old.name));
                    names.insert(device.name);
                }
            }
            LinkMessage::Gone(index) => names.extend(self.devices.remove(&index).map(|(old, _)| old.name)),
            LinkMessage::AllTold => {
                let round = self.round;
                let unseen: Vec<u32> = self
                    .devices
                    .iter()
                    .filter(|(_, (_, seen))| *seen != round)
                    .map(|(index, _)| *index)
                    .collect();
                names.extend(unseen.iter().filter_map(|index| Some(self.devices.remove(index)?.0.name)));
                self.is_complete = true;
            }
            LinkMessage::Done { .. } | LinkMessage::Limited(_) => {}
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<&LinkDevice> {
        self.devices.values().map(|(device, _)| device).find(|device| device.name == name)
    }

    /// The name of the device with this index.
    pub(super) fn name_of(&self, index: u32) -> Option<&str> {
        self.devices.get(&index).map(|(device, _)| device.name.as_str())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, name: &str) -> LinkMessage {
        let name = name.to_owned();
        LinkMessage::Device(LinkDevice {
            index,
            name,
            is_up: true,
            has_link: true,
            mtu_bytes: 1500,
            is_of_bridge: false,
        })
    }

    fn names(table: &mut Table, news: impl IntoIterator<Item = LinkMessage>) -> Vec<String> {
        let mut names = BTreeSet::new();
        news.into_iter().for_each(|news| table.take(news, &mut names));
        names.into_iter().collect()
    }

    #[test]
    fn what_changed_is_told_by_name_old_and_new() {
        let mut table = Table::default();
        assert_eq!(
            names(&mut table, [device(1, "lo"), device(2, "eth1"), LinkMessage::AllTold]),
            ["eth1", "lo"]
        );
        assert!(table.is_complete());
        assert_eq!(names(&mut table, [device(2, "eth1")]), Vec::<String>::new(), "as before");
        assert_eq!(names(&mut table, [device(2, "wan")]), ["eth1", "wan"]);
        assert_eq!((table.find("eth1"), table.find("wan").map(|device| device.index)), (None, Some(2)));
        assert_eq!(table.name_of(2), Some("wan"));
        assert_eq!(names(&mut table, [LinkMessage::Gone(2), LinkMessage::Gone(9)]), ["wan"]);
    }

    #[test]
    fn what_is_not_told_any_more_is_gone() {
        let mut table = Table::default();
        names(&mut table, [device(1, "lo"), device(2, "eth1"), LinkMessage::AllTold]);
        table.begin_round();
        assert_eq!(names(&mut table, [device(1, "lo"), LinkMessage::AllTold]), ["eth1"]);
        assert!(table.find("lo").is_some());
    }
}
