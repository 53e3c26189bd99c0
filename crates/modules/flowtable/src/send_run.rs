//! Packets in a row that have the same single output.

use lasthop_module_api::{DropReason, Header, Verdicts};

use crate::cache::Hit;
use crate::cache_key::CacheKey;
use crate::executor::Executor;
use crate::program::{Code, Step};
use crate::shared::Shared;
use crate::slot::EntryId;
use crate::stats::{Counted, Stock};
use crate::worker_state::{Known, UsualKind, WorkerState};

/// Begins with no code that there is.
const NO_PROGRAM: u64 = u64::MAX;

/// Packets in a row whose flows have the same output, which is all that they do.
pub(crate) struct SendRun {
    program: u64,
    /// Number of the first.
    first: usize,
}

impl SendRun {
    /// None yet; the first one may be packet `first`.
    pub(crate) fn from(first: usize) -> Self {
        Self { program: NO_PROGRAM, first }
    }

    /// The last of them is the one before packet `end`.
    #[inline]
    fn end(&self, shared: &Shared, verdicts: &mut Verdicts, end: usize) {
        if self.first == end {
            return;
        }
        match shared.numbers.port(Step(self.program).operand(0, 16) as u16) {
            Some(port) if end - self.first == 1 => verdicts.output(self.first, port),
            Some(port) => verdicts.output_run(self.first, end - self.first, port),
            None => {
                (self.first..end).for_each(|packet| verdicts.drop_packet(packet, DropReason::PortGone));
            }
        }
    }
}

impl Executor<'_> {
    /// Forwards packets with a mini key of `KEY` words, starting at packet number `first`, whose flow has this program. It takes those whose flow
    /// is in the cache and has a single output action, up to the first other one. Returns their number.
    #[inline]
    pub(crate) fn send_known<const KEY: usize>(
        &mut self,
        headers: &[Header],
        cache_keys: &[CacheKey],
        (first, program): (usize, u64),
    ) -> usize
    where
        WorkerState: UsualKind<KEY>,
    {
        let (local, shared, now_ns) = (&*self.local, self.shared, self.now_ns);
        let Some(stock) = shared.stats.of(local.worker()) else { return 0 };
        let (mut run, mut count) = (SendRun::from(first), 0);
        if !local.pending.is_any() && Step(program).is(Code::Output) {
            run.program = program;
            count = count_alike::<KEY>(local.known_usual(), stock, (headers, cache_keys), (program, now_ns));
        }
        if count < headers.len() {
            count = self.send_others::<KEY>(&mut run, stock, (headers, cache_keys), (first, count));
        }
        run.end(shared, self.verdicts, first + count);
        self.local.note_cached(count as u32);
        count
    }

    /// As [`Self::send_known`], behind `count` packets, with any outputs. Returns the number of all.
    #[inline(never)]
    fn send_others<const KEY: usize>(
        &mut self,
        run: &mut SendRun,
        stock: &Stock,
        (headers, cache_keys): (&[Header], &[CacheKey]),
        (first, mut count): (usize, usize),
    ) -> usize
    where
        WorkerState: UsualKind<KEY>,
    {
        let (local, now_ns) = (&*self.local, self.now_ns);
        let (known, is_any_behind): (Known<'_, KEY>, _) = (local.known_usual(), local.pending.is_any());
        for (header, cache_key) in headers.iter().zip(cache_keys).skip(count) {
            if is_any_behind && !local.pending.is_clear(cache_key) {
                break;
            }
            let Some((_, hit)) = known.find(cache_key) else { break };
            if hit.program != run.program {
                if !Step(hit.program).is(Code::Output) {
                    break;
                }
                run.end(self.shared, self.verdicts, first + count);
                *run = SendRun { program: hit.program, first: first + count };
            }
            let (len_bytes, tcp_flags) = (header.frame_len_bytes(), cache_key.tcp_flags);
            if !stock.count(EntryId::of(hit.stats), Counted { len_bytes, tcp_flags, now_ns }) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Adds a packet to those in a row that have the same output, if that is all that its flow does.
    #[inline(always)]
    pub(crate) fn send_in_run(
        &mut self,
        run: &mut SendRun,
        (packet, header, tcp_flags): (usize, &Header, u16),
        hit: Hit,
    ) -> bool {
        if hit.program != run.program {
            if !Step(hit.program).is(Code::Output) {
                return false;
            }
            self.end_run(run, packet);
            *run = SendRun { program: hit.program, first: packet };
        }
        self.count(header, tcp_flags, hit);
        true
    }

    /// The packets in a row end before packet `end`.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &SendRun, end: usize) {
        run.end(self.shared, self.verdicts, end);
    }
}

/// Counts cached packets for their flows, up to the first one with another program than `program`, a single output. Returns their number.
// A separate function without calls, so that the loop keeps its values in registers.
#[inline(never)]
fn count_alike<const KEY: usize>(
    known: Known<'_, KEY>,
    stock: &Stock,
    (headers, cache_keys): (&[Header], &[CacheKey]),
    (program, now_ns): (u64, u64),
) -> usize {
    let mut count = 0;
    for (header, cache_key) in headers.iter().zip(cache_keys) {
        let Some((_, hit)) = known.find(cache_key) else { break };
        let (len_bytes, tcp_flags) = (header.frame_len_bytes(), cache_key.tcp_flags);
        let counted = Counted { len_bytes, tcp_flags, now_ns };
        if hit.program != program || !stock.count(EntryId::of(hit.stats), counted) {
            break;
        }
        count += 1;
    }
    count
}
