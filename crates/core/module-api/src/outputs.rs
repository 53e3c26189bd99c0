//! Verdicts: outputs, drops and upcalls of a batch.

use lasthop_wire::Metadata;

use crate::{BATCH_PACKETS_MAX, DropReason, Header, PORTS_MAX, PortId};

/// Header images that a module may make for a batch: one with and one without a tag for each packet.
pub const IMAGES_MADE_MAX: usize = 2 * BATCH_PACKETS_MAX;
/// Upcalls of a batch: one miss for each packet, and the same number by actions.
pub const UPCALLS_MAX: usize = 2 * BATCH_PACKETS_MAX;
/// Words of suspended actions in one batch: 32 packets with 64 words each.
pub const SUSPENDED_WORDS_MAX: usize = 64 * BATCH_PACKETS_MAX;

/// One copy of one packet of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Index of the packet in the batch.
    pub packet: u16,
    /// Index of the header image to deliver with: the packet's own, or one from [`Verdicts::add_image`].
    pub image: u16,
    /// The port that gets the copy.
    pub port: PortId,
    /// Deliver at most this many bytes; `u32::MAX` is the whole frame.
    pub truncate_len_bytes: u32,
}

/// The reason for an upcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpcallReason {
    /// No flow matches it.
    Miss,
    /// A userspace action of the flow in slot `flow`, number `step` of them.
    Action {
        /// The flow's number.
        flow: u32,
        /// The index of the userspace action in the flow, from 0 on, in the order of the actions.
        step: u16,
    },
    /// An action needs more of the packet than its image: the other fragments, or the whole payload. This action and
    /// all later ones are executed when that is there.
    Suspended {
        /// Number of the flow to which userspace actions among them belong.
        flow: u32,
        /// The suspended actions, as words of the module.
        rest: SuspendedWords,
    },
}

/// Words of suspended actions ([`Verdicts::suspend`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendedWords {
    start: u16,
    /// How many words there are.
    pub len: u16,
}

impl SuspendedWords {
    /// The words in use, at the front of the record.
    #[must_use]
    pub fn of_len(len: u16) -> Self {
        Self { start: 0, len }
    }
}

/// A copy of a packet for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// Index of the packet in the batch.
    pub packet: u16,
    /// Index of the header image: the packet's own, or one from [`Verdicts::add_image`].
    pub image: u16,
    /// Send at most this many bytes; `u32::MAX` is the whole frame.
    pub truncate_len_bytes: u32,
    /// The reason for the upcall.
    pub reason: UpcallReason,
    /// The packet's metadata.
    pub metadata: Metadata,
    /// The ticket that the module gets back when the control plane has finished with the packet, once for each segment
    /// that it was cut into; 0 if the module needs no answer.
    pub ticket: u32,
    /// The number that the reader of upcalls gave the module: several modules may share one control plane.
    pub origin: u16,
}

/// A module's decisions for a batch. Room for flooding every packet to every port is allocated once.
#[derive(Debug)]
pub struct Verdicts {
    outputs: Vec<Output>,
    /// A count N and a port: packets 0 to N - 1 go to this port, whole and unchanged.
    common: (usize, PortId),
    /// These are in `outputs`. If not, `outputs` is empty.
    is_listed: bool,
    /// Some output is not the next packet, whole and as it is, to the same port as all before. Then they are listed.
    is_mixed: bool,
    drops: Vec<(u16, DropReason)>,
    images: Vec<Header>,
    upcalls: Vec<Upcall>,
    suspended: Vec<u64>,
    /// Bit N: packet N is flooded.
    flooded: u32,
    lost: u32,
    worker: u16,
    pauses_ring: bool,
    /// Whether anything but `common` was decided. If not, all that [`Self::clear`] clears is empty.
    has_more: bool,
    /// The argument of [`crate::Module::delivered`], if that is wanted.
    rest: Option<(PortId, u16)>,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            outputs: Vec::with_capacity(BATCH_PACKETS_MAX * PORTS_MAX),
            common: (0, PortId::INTERNAL),
            is_listed: false,
            is_mixed: false,
            drops: Vec::with_capacity(BATCH_PACKETS_MAX),
            images: Vec::with_capacity(IMAGES_MADE_MAX),
            upcalls: Vec::with_capacity(UPCALLS_MAX),
            suspended: Vec::new(),
            flooded: 0,
            lost: 0,
            worker: 0,
            pauses_ring: false,
            has_more: false,
            rest: None,
        }
    }
}

/// A position in the decisions; see [`Verdicts::shift`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    outputs: usize,
    drops: usize,
    upcalls: usize,
    flooded: u32,
}

impl Verdicts {
    /// Returns empty verdicts of worker `worker`; the default is the first worker.
    #[must_use]
    pub fn of_worker(worker: usize) -> Self {
        Self { worker: worker as u16, ..Self::default() }
    }

    /// Number of the calling worker, for modules with state per worker.
    #[inline]
    #[must_use]
    pub fn worker(&self) -> usize {
        usize::from(self.worker)
    }

    /// Notes that packet `packet` is flooded: no port is known for its destination, or it is for a group. It is not lost if every port that it
    /// goes to is down. A packet with several copies counts as flooded without this.
    #[inline]
    pub fn note_flood(&mut self, packet: usize) {
        debug_assert!(packet < BATCH_PACKETS_MAX);
        self.flooded |= 1 << (packet % BATCH_PACKETS_MAX);
        self.has_more = true;
    }

    /// The packets of [`Self::note_flood`], as bits.
    #[inline]
    #[must_use]
    pub fn flooded(&self) -> u32 {
        self.flooded
    }

    /// Leaves the packets behind this batch in their ring until [`crate::Module::keeps_paused`] returns false.
    pub fn pause_ring(&mut self) {
        (self.pauses_ring, self.has_more) = (true, true);
    }

    /// Whether [`Self::pause_ring`] was called for this batch.
    #[inline]
    #[must_use]
    pub fn pauses_ring(&self) -> bool {
        self.pauses_ring
    }

    /// Asks for a call of [`crate::Module::delivered`] of the port's module, with this number. The last one counts.
    #[inline]
    pub fn leave_rest(&mut self, port: PortId, rest: u16) {
        self.rest = Some((port, rest));
    }

    /// The port and the number of [`Self::leave_rest`], once.
    #[inline]
    pub fn take_rest(&mut self) -> Option<(PortId, u16)> {
        self.rest.take()
    }

    /// Adds an upcall. Beyond [`UPCALLS_MAX`] it adds nothing and returns false.
    pub fn upcall(&mut self, upcall: Upcall) -> bool {
        let has_room = self.upcalls.len() < UPCALLS_MAX;
        if has_room {
            self.upcalls.push(upcall);
            self.has_more = true;
        }
        has_room
    }

    /// Stores words of suspended actions for an upcall of this batch. `None` beyond [`SUSPENDED_WORDS_MAX`].
    #[cold]
    pub fn suspend(&mut self, words: impl ExactSizeIterator<Item = u64>) -> Option<SuspendedWords> {
        let (start, len) = (self.suspended.len(), words.len());
        if start + len > SUSPENDED_WORDS_MAX {
            return None;
        }
        self.has_more = true;
        // Reserved on first use: most workers never meet a fragment.
        self.suspended.reserve_exact(SUSPENDED_WORDS_MAX - start);
        self.suspended.extend(words);
        Some(SuspendedWords { start: start as u16, len: len as u16 })
    }

    /// The stored words.
    #[must_use]
    pub fn suspended(&self, words: SuspendedWords) -> &[u64] {
        let start = usize::from(words.start);
        self.suspended.get(start..start + usize::from(words.len)).unwrap_or_default()
    }

    /// The upcalls in the order of decision.
    #[must_use]
    pub fn upcalls(&self) -> &[Upcall] {
        &self.upcalls
    }

    /// Sends packet `packet` of the batch to `port`, whole and unchanged.
    #[inline(always)] // few instructions, unless packets go different ways
    pub fn output(&mut self, packet: usize, port: PortId) {
        if !self.continue_common(packet, 1, port) {
            self.mix();
            self.add_whole(packet, port);
        }
    }

    /// The same for several packets; `first` is the index of the first one.
    #[inline]
    pub fn output_run(&mut self, first: usize, count: usize, port: PortId) {
        if !self.continue_common(first, count, port) {
            self.mix();
            (first..first + count).for_each(|packet| self.add_whole(packet, port));
        }
    }

    /// Whether all packets so far go to `port`, as these do, which are the next ones.
    #[inline(always)]
    fn continue_common(&mut self, first: usize, count: usize, port: PortId) -> bool {
        let (common, to) = self.common;
        let is_next = !self.is_listed && first == common && (first == 0 || port == to);
        if is_next {
            self.common = (first + count, port);
        }
        is_next
    }

    #[inline(always)]
    fn add_whole(&mut self, packet: usize, port: PortId) {
        let packet = packet as u16; // below BATCH_PACKETS_MAX
        self.add(Output { packet, image: packet, port, truncate_len_bytes: u32::MAX });
    }

    /// Lists the packets that go to one port.
    #[inline]
    fn list(&mut self) {
        if !std::mem::replace(&mut self.is_listed, true) {
            self.has_more = true;
            self.list_common();
        }
    }

    #[inline(never)]
    fn list_common(&mut self) {
        let (count, port) = self.common;
        let output = |packet| Output { packet, image: packet, port, truncate_len_bytes: u32::MAX };
        self.outputs.extend((0..count as u16).map(output)); // a batch at most
    }

    /// They do not all go to one port, or not as they are.
    #[inline]
    fn mix(&mut self) {
        self.list();
        self.is_mixed = true;
    }

    /// The port to which all of the batch's `packets` packets go, whole and unchanged. `None` if they differ or if
    /// anything else was decided.
    #[inline]
    #[must_use]
    pub fn common_port(&self, packets: usize) -> Option<PortId> {
        let (common, port) = self.common;
        let is_alone = !self.has_more || self.is_only_common();
        (is_alone && common == packets && packets > 0).then_some(port)
    }

    /// As far as packets are concerned.
    fn is_only_common(&self) -> bool {
        let rest = self.drops.len() + self.upcalls.len() + self.lost as usize;
        !self.is_mixed && rest == 0
    }

    /// The port of the last copy, if there is one.
    #[must_use]
    pub fn last_port(&self) -> Option<PortId> {
        match self.common {
            (1.., port) if !self.is_mixed => Some(port),
            _ => self.outputs.last().map(|output| output.port),
        }
    }

    /// Adds an output. Beyond the room for outputs it is lost, and the fabric counts `verdict_overflow`.
    #[inline]
    pub fn push(&mut self, output: Output) {
        self.mix();
        self.add(output);
    }

    #[inline]
    fn add(&mut self, output: Output) {
        debug_assert!(usize::from(output.packet) < BATCH_PACKETS_MAX);
        if self.outputs.len() < self.outputs.capacity() {
            self.outputs.push(output);
        } else {
            self.lost += 1;
        }
    }

    /// Stores an edited header image for outputs of this batch, and returns its index for [`Output::image`]. `None` if
    /// there are [`IMAGES_MADE_MAX`] already.
    pub fn add_image(&mut self, header: Header) -> Option<u16> {
        let index = BATCH_PACKETS_MAX + self.images.len();
        let has_room = self.images.len() < IMAGES_MADE_MAX;
        has_room.then(|| {
            self.has_more = true;
            self.images.push(header);
            index as u16 // below 3 * BATCH_PACKETS_MAX
        })
    }

    /// Stores a copy of an image and returns it for editing in place, with its index.
    #[inline]
    pub fn copy_image(&mut self, header: &Header) -> Option<(u16, &mut Header)> {
        let at = self.images.len();
        if at >= IMAGES_MADE_MAX {
            return None;
        }
        self.has_more = true;
        self.images.push(*header);
        let index = (BATCH_PACKETS_MAX + at) as u16; // below 3 * BATCH_PACKETS_MAX
        self.images.get_mut(at).map(|image| (index, image))
    }

    /// The stored images, the first with index `BATCH_PACKETS_MAX`.
    #[must_use]
    pub fn images(&self) -> &[Header] {
        &self.images
    }

    /// Drops packet `packet` of the batch for `reason`. For a packet with outputs this counts one more copy as dropped.
    #[inline]
    pub fn drop_packet(&mut self, packet: usize, reason: DropReason) {
        if self.drops.len() < self.drops.capacity() {
            self.has_more = true;
            self.drops.push((packet as u16, reason));
        }
    }

    /// The current position in the decisions.
    #[must_use]
    pub fn mark(&mut self) -> Mark {
        self.list();
        let flooded = std::mem::take(&mut self.flooded);
        Mark { outputs: self.outputs.len(), drops: self.drops.len(), upcalls: self.upcalls.len(), flooded }
    }

    /// Adds `by` to the packet indices of all decisions after `mark`. They were made for a part of the batch that
    /// begins with packet `by`, and count from there.
    pub fn shift(&mut self, mark: Mark, by: u16) {
        self.mix();
        // Images that were made have numbers of their own.
        let shifted = |image: u16| if usize::from(image) < BATCH_PACKETS_MAX { image + by } else { image };
        for output in self.outputs.iter_mut().skip(mark.outputs) {
            (output.packet, output.image) = (output.packet + by, shifted(output.image));
        }
        for upcall in self.upcalls.iter_mut().skip(mark.upcalls) {
            (upcall.packet, upcall.image) = (upcall.packet + by, shifted(upcall.image));
        }
        self.drops.iter_mut().skip(mark.drops).for_each(|(packet, _)| *packet += by);
        self.flooded = mark.flooded | self.flooded << by;
    }

    /// All copies, in the order in which they were decided.
    #[must_use]
    pub fn outputs(&mut self) -> &[Output] {
        self.list();
        &self.outputs
    }

    /// Removes the copies for which `keep` returns false; the others keep their order.
    #[inline]
    pub fn retain_outputs(&mut self, keep: impl FnMut(&Output) -> bool) {
        self.mix();
        self.outputs.retain(keep);
    }

    /// All drops: packet index and reason.
    #[must_use]
    pub fn drops(&self) -> &[(u16, DropReason)] {
        &self.drops
    }

    /// Copies that did not fit.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Clears all decisions and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.common.0 = 0;
        if std::mem::take(&mut self.has_more) {
            self.clear_more();
        }
    }

    fn clear_more(&mut self) {
        (self.lost, self.pauses_ring, self.is_mixed, self.is_listed) = (0, false, false, false);
        self.flooded = 0;
        self.outputs.clear();
        self.drops.clear();
        self.images.clear();
        self.upcalls.clear();
        self.suspended.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_beyond_the_room_are_counted() {
        let mut verdicts = Verdicts::default();
        for _ in 0..BATCH_PACKETS_MAX * PORTS_MAX + 3 {
            verdicts.output(0, PortId(1));
        }
        assert_eq!((verdicts.outputs().len(), verdicts.lost()), (BATCH_PACKETS_MAX * PORTS_MAX, 3));
        verdicts.clear();
        assert_eq!((verdicts.outputs().len(), verdicts.lost()), (0, 0));
    }

    #[test]
    fn packets_with_one_port_are_listed_when_they_are_asked_for() {
        let told = |verdicts: &mut Verdicts| -> Vec<_> {
            verdicts.outputs().iter().map(|output| (output.packet, output.image, output.port.0)).collect()
        };
        let mut verdicts = Verdicts::default();
        assert_eq!((verdicts.common_port(0), verdicts.last_port()), (None, None));
        verdicts.output(0, PortId(4));
        verdicts.output_run(1, 2, PortId(4));
        assert_eq!((verdicts.common_port(3), verdicts.common_port(4)), (Some(PortId(4)), None));
        assert_eq!(
            (verdicts.last_port(), told(&mut verdicts)),
            (Some(PortId(4)), vec![(0, 0, 4), (1, 1, 4), (2, 2, 4)])
        );
        assert_eq!(verdicts.common_port(3), Some(PortId(4)), "also when they are listed");
        verdicts.output(3, PortId(4));
        assert_eq!(
            (verdicts.common_port(4), told(&mut verdicts).len()),
            (None, 4),
            "listed ones count as mixed"
        );
        for other in [PortId(4), PortId(5)] {
            verdicts.clear();
            verdicts.output_run(0, 2, PortId(4));
            verdicts.output(if other == PortId(4) { 3 } else { 2 }, other);
            assert_eq!((verdicts.common_port(3), verdicts.last_port()), (None, Some(other)));
            assert_eq!(told(&mut verdicts)[..2], [(0, 0, 4), (1, 1, 4)]);
            assert_eq!(verdicts.outputs().len(), 3);
        }
        verdicts.clear();
        assert!(verdicts.outputs().is_empty());
        verdicts.output(0, PortId(1));
        verdicts.drop_packet(0, DropReason::NoFlow);
        assert_eq!(verdicts.common_port(1), None);
        verdicts.retain_outputs(|_| false);
        assert_eq!((verdicts.last_port(), verdicts.outputs().len()), (None, 0));
    }

    #[test]
    fn decisions_for_a_part_of_a_batch_are_shifted_to_its_packets() {
        let mut verdicts = Verdicts::default();
        verdicts.output(1, PortId(1));
        verdicts.note_flood(1);
        let mark = verdicts.mark();
        verdicts.output(0, PortId(2));
        let image = verdicts.add_image(Header::default()).expect("there is room");
        verdicts.push(Output { packet: 1, image, port: PortId(3), truncate_len_bytes: u32::MAX });
        verdicts.drop_packet(2, DropReason::NoFlow);
        verdicts.note_flood(1);
        verdicts.shift(mark, 5);
        let told: Vec<_> = verdicts.outputs().iter().map(|output| (output.packet, output.image)).collect();
        assert_eq!(told, [(1, 1), (5, 5), (6, image)]);
        assert_eq!(verdicts.drops(), [(7, DropReason::NoFlow)]);
        assert_eq!(verdicts.flooded(), 1 << 1 | 1 << 6);
        verdicts.clear();
        assert_eq!(verdicts.flooded(), 0);
    }
}
