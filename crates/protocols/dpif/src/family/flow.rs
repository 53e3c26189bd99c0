//! Family `ovs_flow`.

use lasthop_flow::{Action, FlowKey, FlowStats, Match, Ufid};

use super::{put_words, words};
use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::flow as uapi;
use crate::{action, key};

/// `OVS_FLOW_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowMessage {
    /// The datapath.
    pub datapath: i32,
    /// Its match.
    pub key: Option<FlowKey>,
    /// The mask of the match.
    pub mask: Option<FlowKey>,
    /// Its actions.
    pub actions: Option<Vec<Action>>,
    /// Its statistics.
    pub stats: Option<FlowStats>,
    /// Whether to reset the counters.
    pub is_clear: bool,
    /// Whether this is a probe: no packet may match the flow.
    pub is_probe: bool,
    /// Its name.
    pub ufid: Option<Ufid>,
    /// Fields to omit in answers: `OVS_UFID_F_*`.
    pub omitted: Option<u32>,
}

/// The parts of a flow that a message has, where they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowParts<'a> {
    /// Its name.
    pub ufid: Option<Ufid>,
    /// Its match.
    pub key: Option<&'a FlowKey>,
    /// The mask of the match.
    pub mask: Option<&'a FlowKey>,
    /// Its statistics.
    pub stats: Option<FlowStats>,
    /// Its actions.
    pub actions: Option<&'a [Action]>,
}

impl<'a> FlowParts<'a> {
    /// Everything of a flow but its statistics, as a request to install it has it.
    #[must_use]
    pub fn of(ufid: Option<Ufid>, matches: &'a Match, actions: &'a [Action]) -> Self {
        let (key, mask) = (Some(&matches.key), matches.mask.as_ref());
        Self { ufid, key, mask, stats: None, actions: Some(actions) }
    }

    /// Encodes the attributes; omits counters of zero, as the kernel does.
    pub fn encode(&self, writer: &mut Writer) {
        if let Some(ufid) = self.ufid {
            writer.put_fixed(uapi::UFID, &ufid.0);
        }
        if let Some(key) = self.key {
            writer.nest(uapi::KEY, |nested| key::encode(nested, key));
        }
        if let Some(mask) = self.mask {
            writer.nest(uapi::MASK, |nested| key::encode(nested, mask));
        }
        if let Some(stats) = &self.stats {
            encode_stats(writer, stats);
        }
        if let Some(actions) = self.actions {
            writer.nest(uapi::ACTIONS, |nested| action::encode(nested, actions));
        }
    }
}

/// The name and the counters of a flow, if the message has nothing else: one of a brief list.
#[must_use]
pub fn counters_in(attrs: Attrs<'_>) -> Option<(Ufid, FlowStats)> {
    let (mut ufid, mut stats) = (None, Stats::default());
    for attr in attrs {
        let attr = attr.ok()?;
        match attr.kind {
            uapi::UFID => ufid = Some(decode_ufid(&attr).ok()?),
            uapi::STATS | uapi::USED | uapi::TCP_FLAGS => stats.decode(&attr).ok()?,
            _ => return None,
        }
    }
    Some((ufid?, stats.counters))
}

impl FlowMessage {
    /// Decodes a message about a flow of `datapath`; ignores attributes without a use here, as the kernel does.
    ///
    /// # Errors
    /// EINVAL for invalid keys, masks and actions, ERANGE for other attributes of a wrong length.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, ..Self::default() };
        message.read(attrs)?;
        Ok(message)
    }

    /// As [`Self::decode`], into an empty message where it is to be: messages are long to copy.
    pub(crate) fn read(&mut self, attrs: Attrs<'_>) -> Result<(), Refusal> {
        let (mut mask, mut stats) = (None, Stats::default());
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::KEY => key::decode_into(self.key.insert(FlowKey::default()), attr.nested())?,
                uapi::MASK => mask = Some(attr),
                uapi::ACTIONS => self.actions = Some(action::decode(attr.payload)?),
                uapi::CLEAR => self.is_clear = true,
                uapi::PROBE => self.is_probe = true,
                uapi::UFID => self.ufid = Some(decode_ufid(&attr)?),
                uapi::UFID_FLAGS => self.omitted = Some(attr.u32()?),
                _ => stats.decode(&attr)?,
            }
        }
        if let Some(mask) = mask {
            let key = self.key.as_ref().ok_or(Refusal::invalid("a mask without a key"))?;
            key::decode_mask_into(self.mask.insert(FlowKey::default()), mask.nested(), key)?;
        }
        self.stats = stats.is_there.then_some(stats.counters);
        Ok(())
    }

    /// Encodes the attributes; omits counters of zero, as the kernel does.
    pub fn encode(&self, writer: &mut Writer) {
        let (key, mask) = (self.key.as_ref(), self.mask.as_ref());
        FlowParts { ufid: self.ufid, key, mask, stats: self.stats, actions: self.actions.as_deref() }
            .encode(writer);
        writer.put_flag(uapi::CLEAR, self.is_clear);
        writer.put_flag(uapi::PROBE, self.is_probe);
        writer.put_some(uapi::UFID_FLAGS, self.omitted.map(u32::to_ne_bytes));
    }
}

fn decode_ufid(attr: &Attr<'_>) -> Result<Ufid, Refusal> {
    attr.array().map(Ufid).map_err(|_| Refusal::invalid("a flow's name has to have 16 bytes"))
}

#[derive(Default)]
struct Stats {
    counters: FlowStats,
    is_there: bool,
}

impl Stats {
    fn decode(&mut self, attr: &Attr<'_>) -> Result<(), Refusal> {
        match attr.kind {
            uapi::STATS => [self.counters.packets, self.counters.bytes] = words::<16, 2>(attr)?,
            uapi::USED => self.counters.used_ms = attr.u64()?,
            uapi::TCP_FLAGS => self.counters.tcp_flags = attr.u8()?.into(),
            _ => return Ok(()),
        }
        self.is_there = true;
        Ok(())
    }
}

fn encode_stats(writer: &mut Writer, stats: &FlowStats) {
    if stats.packets != 0 {
        put_words(writer, uapi::STATS, [stats.packets, stats.bytes]);
    }
    // Eight flags fit; OVS does not use the others.
    let [_, tcp_flags] = stats.tcp_flags.to_be_bytes();
    if tcp_flags != 0 {
        writer.put(uapi::TCP_FLAGS, &[tcp_flags]);
    }
    if stats.used_ms != 0 {
        writer.put_fixed(uapi::USED, &stats.used_ms.to_ne_bytes());
    }
}
