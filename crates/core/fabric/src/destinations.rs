//! Sorts the outputs of a batch into one list per destination.

use lasthop_module_api::{BATCH_PACKETS_MAX, Output, PORTS_MAX, PortId};

const END: u32 = u32::MAX;

/// Outputs of a batch as one list per destination. Only destinations of this batch are touched (mSwitch, section 3).
///
/// ```text
///   touched [ p7, p2 ]      lists[p7] first ─> next ─> next ─> END      lists[p2] first ─> END
/// ```
#[derive(Debug)]
pub(crate) struct Destinations {
    lists: Box<[List]>,
    next: Box<[u32]>,
    touched: Vec<PortId>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: END, last: END };

/// The outputs to one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) port: PortId,
    /// Index of the first output; `after` returns the next ones.
    pub(crate) first: usize,
}

impl Default for Destinations {
    fn default() -> Self {
        Self {
            lists: vec![EMPTY; PORTS_MAX].into_boxed_slice(),
            next: vec![0; BATCH_PACKETS_MAX * PORTS_MAX].into_boxed_slice(),
            touched: Vec::with_capacity(PORTS_MAX),
        }
    }
}

impl Destinations {
    /// Builds the lists of `outputs`. Within a destination they keep their order.
    #[inline]
    pub(crate) fn sort(&mut self, outputs: &[Output]) {
        for (index, output) in outputs.iter().enumerate() {
            let Some(list) = self.lists.get_mut(output.port.index()) else { continue };
            let at = index as u32;
            self.next[index] = END;
            if list.first == END {
                list.first = at;
                self.touched.push(output.port);
            } else {
                self.next[list.last as usize] = at;
            }
            list.last = at;
        }
    }

    /// All destinations, each once.
    #[inline]
    pub(crate) fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.touched.iter().copied()
    }

    /// Takes the next destination and its list.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Destination> {
        let port = self.touched.pop()?;
        let list = std::mem::replace(&mut self.lists[port.index()], EMPTY);
        Some(Destination { port, first: list.first as usize })
    }

    /// The output that follows output `index` to the same destination.
    #[inline]
    pub(crate) fn after(&self, index: usize) -> Option<usize> {
        let next = self.next[index];
        (next != END).then_some(next as usize)
    }
}
