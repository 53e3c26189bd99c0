//! A connection to the switch without its socket: sends requests in datagrams, and matches replies until each
//! datagram's END.

use std::collections::VecDeque;

use lasthop_dpif::Refusal;
use lasthop_dpif::server::Family;
use lasthop_dpif::talk::{self, DpifReply, DpifRequest};

use crate::bounds::{BATCH_BYTES, BATCH_REQUESTS};

/// Spreads the first request numbers of connections (2^32 divided by the golden ratio).
const NUMBERS_APART: u32 = 0x9e37_79b9;

/// A pending request and its purpose.
#[derive(Debug)]
struct Open<W> {
    seq: u32,
    what: W,
    refusal: Option<(i32, Option<String>)>,
}

/// A reply, or the end of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer<W> {
    /// A reply to it, or a notification.
    Message(Option<W>, DpifReply),
    /// The request is done, or refused with this error number and sentence.
    Done(W, Option<(i32, Option<String>)>),
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct DatapathLink<W> {
    port_id: Option<u32>,
    last_seq: u32,
    batch: Vec<u8>,
    batched: Vec<Open<W>>,
    out: VecDeque<Vec<u8>>,
    /// Datagrams, sent or queued, without an END yet.
    open: VecDeque<Vec<Open<W>>>,
    /// Number of datagrams with their END.
    ended: u64,
    /// The memory of the last datagram that was sent, and of the requests of the last one with an END, to be used again.
    spare: (Vec<u8>, Vec<Open<W>>),
}

impl<W: Clone> DatapathLink<W> {
    /// A new connection that requests this port id.
    pub(crate) fn new(port_id: u32) -> Self {
        Self {
            port_id: None,
            // Notifications of other clients' changes have those clients' numbers.
            last_seq: port_id.wrapping_mul(NUMBERS_APART),
            batch: Vec::new(),
            batched: Vec::new(),
            out: VecDeque::from([talk::hello(port_id)]),
            open: VecDeque::new(),
            ended: 0,
            spare: Default::default(),
        }
    }

    /// The port id for misses; `None` until the switch has replied.
    pub(crate) fn port_id(&self) -> Option<u32> {
        self.port_id
    }

    /// Adds a request. It is sent with the next [`DatapathLink::flush`] at latest.
    pub(crate) fn ask(&mut self, ask: &DpifRequest, what: W) -> bool {
        self.ask_by(|datagram, seq, port_id| ask.append(datagram, seq, port_id), what)
    }

    /// The same, for a request that `append` appends to a datagram with this number and port id.
    pub(crate) fn ask_by(
        &mut self,
        append: impl FnOnce(&mut Vec<u8>, u32, u32) -> Result<(), Refusal>,
        what: W,
    ) -> bool {
        self.last_seq = self.last_seq.wrapping_add(1).max(1);
        let (seq, before) = (self.last_seq, self.batch.len());
        if append(&mut self.batch, seq, self.port_id.unwrap_or(0)).is_err() {
            return false;
        }
        if before > 0 && self.batch.len() > BATCH_BYTES {
            // A message begins at a multiple of four bytes.
            let next = self.batch.split_off(before.next_multiple_of(4));
            self.batch.truncate(before);
            self.flush();
            self.batch = next;
        }
        self.batched.push(Open { seq, what, refusal: None });
        if self.batched.len() >= BATCH_REQUESTS {
            self.flush();
        }
        true
    }

    /// Sends the requests so far.
    pub(crate) fn flush(&mut self) {
        if !self.batched.is_empty() {
            let (bytes, requests) = std::mem::take(&mut self.spare);
            self.out.push_back(std::mem::replace(&mut self.batch, bytes));
            self.open.push_back(std::mem::replace(&mut self.batched, requests));
        }
    }

    pub(crate) fn output(&self) -> Option<&[u8]> {
        self.out.front().map(Vec::as_slice)
    }

    pub(crate) fn sent(&mut self) {
        if let Some(mut datagram) = self.out.pop_front() {
            datagram.clear();
            self.spare.0 = datagram;
        }
    }

    /// The number of datagrams with an END once all requests so far are done.
    pub(crate) fn asked_until_now(&self) -> u64 {
        self.ended + self.open.len() as u64
    }

    /// Whether at least this number of datagrams had their END.
    pub(crate) fn has_ended(&self, datagrams: u64) -> bool {
        self.ended >= datagrams
    }

    /// Number of pending datagrams.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Handles a reply of a received datagram; adds what it answers to `answers`.
    pub(crate) fn received(&mut self, reply: DpifReply, answers: &mut Vec<Answer<W>>) {
        match reply {
            DpifReply::Nothing => {}
            DpifReply::Hello(port_id) => {
                self.port_id = Some(port_id);
                let groups = [Family::Vport, Family::Datapath].map(talk::watch);
                for first in [talk::listen(), talk::batch()].into_iter().chain(groups) {
                    self.out.push_back(first);
                    self.open.push_back(Vec::new());
                }
            }
            DpifReply::End => {
                let mut ended = self.open.pop_front().unwrap_or_default();
                self.ended += 1;
                answers.extend(ended.drain(..).map(|open| Answer::Done(open.what, open.refusal)));
                self.spare.1 = ended;
            }
            DpifReply::Refused { seq, errno, why } => {
                if let Some(open) = self.find(seq) {
                    open.refusal = Some((errno, why));
                }
            }
            DpifReply::Miss(_) | DpifReply::BadMiss(_) => answers.push(Answer::Message(None, reply)),
            DpifReply::Datapath(seq, _)
            | DpifReply::Port(seq, _)
            | DpifReply::Flow(seq, _)
            | DpifReply::Counters(seq, ..) => {
                let what = self.find(seq).map(|open| open.what.clone());
                answers.push(Answer::Message(what, reply));
            }
        }
    }

    fn find(&mut self, seq: u32) -> Option<&mut Open<W>> {
        self.open.front_mut()?.iter_mut().find(|open| open.seq == seq)
    }
}
