//! Memory in which connections outlive this process: behind that of flows, in the same file.
//!
//! ```text
//!   flows (`flow_memory`) | owner, one page | connections (`lasthop_conntrack`) | owner | connections
//!                           └──── of a controller outside ────────────────────┘ └── embedded one ──┘
//! ```
//!
//! It has room for the connections of two datapaths: the first one of an external controller, since Open vSwitch has
//! one, and the first one of the embedded controller. The connections of other datapaths are lost with this process. A
//! deleted datapath leaves no connections to the next one of its number.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_api::orders::{CONNECTION_AREAS, CONNECTION_MEMORY_BYTES, FLOW_MEMORY_BYTES};
use lasthop_api::settings::HugePages;
use lasthop_conntrack::{ConntrackTable, CtBounds};
use lasthop_dpif::datapath::DatapathId;
use lasthop_flowtable::FlowTable;
use lasthop_guestmem::{Mapping, Words};
use lasthop_runtime::clock;

/// Word of the owner: the datapath's number plus one; 0 for none.
const OWNER_BYTES: u64 = 4096;

/// The two areas; `None` for one that cannot be mapped, as in a file of an earlier version.
#[derive(Debug, Default)]
pub(super) struct ConnectionMemories {
    outside: Option<ConnectionMemory>,
    embedded: Option<ConnectionMemory>,
}

impl ConnectionMemories {
    /// Maps the areas of a file.
    pub(super) fn of(file: impl AsFd, huge_pages: HugePages) -> Self {
        let of = |area| ConnectionMemory::of(&file, area, huge_pages);
        Self { outside: of(0), embedded: of(1) }
    }

    /// Forgets connections of the last process whose datapath is gone. `is_there` gets the datapath, and whether its
    /// controller was the embedded one.
    pub(super) fn forget_unless(&self, is_there: impl Fn(DatapathId, bool) -> bool) {
        self.outside.iter().for_each(|memory| memory.forget_unless(|id| is_there(id, false)));
        self.embedded.iter().for_each(|memory| memory.forget_unless(|id| is_there(id, true)));
    }

    /// Lets the connections of a datapath outlive this process, if its controller has an area that no other datapath
    /// uses.
    pub(super) fn lend(&mut self, id: DatapathId, is_embedded: bool, table: &FlowTable) {
        let memory = if is_embedded { &mut self.embedded } else { &mut self.outside };
        memory.iter_mut().for_each(|memory| memory.lend(id, table));
    }

    /// Ends the use of an area by a deleted datapath.
    pub(super) fn take_back(&self, id: DatapathId) {
        self.outside.iter().chain(&self.embedded).for_each(|memory| memory.take_back(id));
    }
}

/// One area.
#[derive(Debug)]
struct ConnectionMemory {
    owner: Words,
    connections: Arc<Mapping>,
    /// Whether a table of this process uses it, or has used it.
    is_lent: bool,
}

/// Bytes that a table of connections needs.
fn table_bytes() -> u64 {
    ConntrackTable::memory_bytes_for(&CtBounds::default()) as u64
}

impl ConnectionMemory {
    fn of(file: impl AsFd, area: u64, huge_pages: HugePages) -> Option<Self> {
        debug_assert!(area < CONNECTION_AREAS && OWNER_BYTES + table_bytes() <= CONNECTION_MEMORY_BYTES);
        let begin = FLOW_MEMORY_BYTES + area * CONNECTION_MEMORY_BYTES;
        let owner = Mapping::of_file(file.as_fd(), begin, OWNER_BYTES).ok()?;
        let owner = Words::new(&Arc::new(owner), 0, 1)?;
        let map = match huge_pages {
            HugePages::Auto => Mapping::of_file_with_huge_pages,
            HugePages::Off => Mapping::of_file,
        };
        let connections = Arc::new(map(file.as_fd(), begin + OWNER_BYTES, table_bytes()).ok()?);
        Some(Self { owner, connections, is_lent: false })
    }

    /// The datapath whose connections are in the area.
    fn owner(&self) -> Option<DatapathId> {
        let number = self.owner.read(0).checked_sub(1)?;
        i32::try_from(number).ok().map(DatapathId)
    }

    /// Forgets connections of the last process, unless `is_there` confirms their datapath.
    fn forget_unless(&self, is_there: impl Fn(DatapathId) -> bool) {
        if !self.owner().is_some_and(is_there) {
            self.owner.publish(0, 0);
        }
    }

    /// Lets the connections of a datapath outlive this process, unless another one uses the area; takes over those that
    /// the last process left.
    fn lend(&mut self, id: DatapathId, table: &FlowTable) {
        let owner = self.owner();
        if self.is_lent || owner.is_some_and(|owner| owner != id) {
            return;
        }
        if owner.is_none() {
            // Without a layout the area has no connections.
            Words::new(&self.connections, 0, 1).into_iter().for_each(|layout| layout.publish(0, 0));
        }
        self.is_lent = true;
        let is_kept = table.keep_connections(&self.connections, clock::now_ms()).is_some();
        self.owner.publish(0, if is_kept { u64::from(id.0.cast_unsigned()) + 1 } else { 0 });
    }

    /// Workers may still be using the table of a deleted datapath, so no other datapath gets the area.
    fn take_back(&self, id: DatapathId) {
        if self.is_lent {
            self.forget_unless(|owner| owner != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use lasthop_guestmem::memfd;

    use super::*;

    fn file() -> std::os::fd::OwnedFd {
        memfd("connections", FLOW_MEMORY_BYTES + CONNECTION_MEMORY_BYTES).expect("memory")
    }

    fn owner_of(file: &impl AsFd) -> Option<i32> {
        ConnectionMemory::of(file, 0, HugePages::Auto).expect("mapped").owner().map(|id| id.0)
    }

    #[test]
    fn the_first_datapath_has_it_until_it_is_deleted() {
        let file = file();
        let mut memory = ConnectionMemory::of(&file, 0, HugePages::Auto).expect("mapped");
        let tables = [FlowTable::default(), FlowTable::default(), FlowTable::default()];
        memory.lend(DatapathId(0), &tables[0]);
        assert_eq!(owner_of(&file), Some(0));
        memory.lend(DatapathId(2), &tables[1]);
        assert_eq!(owner_of(&file), Some(0));
        memory.take_back(DatapathId(2));
        assert_eq!(owner_of(&file), Some(0));
        memory.take_back(DatapathId(0));
        assert_eq!(owner_of(&file), None);
        memory.lend(DatapathId(3), &tables[2]);
        assert_eq!(owner_of(&file), None, "workers may still be at the table of the first one");
    }

    #[test]
    fn connections_are_those_of_their_datapath_and_of_no_other_one() {
        let file = file();
        let lend = |id, table: &FlowTable| {
            ConnectionMemory::of(&file, 0, HugePages::Auto).expect("mapped").lend(DatapathId(id), table);
            table.connections_made().is_some()
        };
        assert!(lend(5, &FlowTable::default()));
        assert!(!lend(6, &FlowTable::default()), "it is another one's");
        assert!(lend(5, &FlowTable::default()));
        ConnectionMemory::of(&file, 0, HugePages::Auto)
            .expect("mapped")
            .forget_unless(|id| id != DatapathId(5));
        assert!(lend(6, &FlowTable::default()));
        assert_eq!(owner_of(&file), Some(6));
    }

    #[test]
    fn each_kind_of_controller_has_an_area() {
        let bytes = FLOW_MEMORY_BYTES + CONNECTION_AREAS * CONNECTION_MEMORY_BYTES;
        let file = memfd("connections", bytes).expect("memory");
        let table = |id, is_embedded| {
            let table = FlowTable::default();
            ConnectionMemories::of(&file, HugePages::Auto).lend(DatapathId(id), is_embedded, &table);
            table.connections_made().is_some()
        };
        assert!(table(1, true) && table(2, false));
        assert!(!table(2, true) && !table(1, false), "each is the other one's");
        ConnectionMemories::of(&file, HugePages::Auto).forget_unless(|_, is_embedded| is_embedded);
        assert!(table(3, false) && !table(3, true));
    }

    #[test]
    fn a_file_of_an_earlier_version_has_none() {
        let file = memfd("flows", FLOW_MEMORY_BYTES).expect("memory");
        assert!(ConnectionMemory::of(&file, 0, HugePages::Auto).is_none());
    }
}
