//! Actions in the form that workers execute: words, which are checked and bounded when a flow is installed.
//!
//! ```text
//!   one step      [ operands : 56 | code : 8 ]                             in the flow's slot itself
//!   several       [ length : 24 | place : 32 | Long ]  ──>  words of the arena: step, step, ..., a nested list behind the step
//!                                                           that has it
//! ```

mod ct;

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_flow::{Action, Group, HashAlgorithm, Masked, Nsh, NshContext, Rewrite, Vlan, outer_header};

use lasthop_wire::tunnel::{OuterHeader, TUNNEL_BYTES, flag};

use crate::UnsupportedFlow;
use crate::bounds::{NESTING_MAX, PROGRAM_WORDS_MAX, PUSH_NSH_BYTES_MAX};
use crate::numbers::NUMBERS;

pub(crate) use ct::{PlainCt, read as read_ct};

/// Bit position of the id in [`Code::CtRecirc`].
const CT_RECIRC_ID_SHIFT: u32 = 24;

/// Bytes of the largest group that can be rewritten: IPv6.
pub(crate) const GROUP_BYTES_MAX: usize = 40;
/// Bytes of a service header before its context, and of one that is rewritten.
const NSH_BASE_BYTES: usize = 8;
const NSH_IMAGE_BYTES: usize = 24;
/// The probability of a sample that takes every packet.
pub(crate) const ALWAYS: u32 = u32::MAX;

macro_rules! codes {
    ($($name:ident = $doc:literal,)*) => {
        /// The code of a step; names list its operands from the lowest bit on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Code { $(#[doc = $doc] $name),* }

        impl Code {
            const ALL: &[Code] = &[$(Code::$name),*];
        }
    };
}

codes! {
    End = "Nothing more.",
    Long = "The steps are in the arena: place 32, length 24.",
    Output = "Number of a port in the datapath 16.",
    Userspace = "Number of the step among all of the flow's userspace steps 16.",
    Recirc = "Id 32.",
    Priority = "A word follows: value 32, mask 32.",
    Mark = "A word follows: value 32, mask 32.",
    Rewrite = "Kind 8, bytes 8; words with the value follow, then words with the mask.",
    PushVlan = "TPID 16, TCI 16.",
    PopVlan = "No operands.",
    Hash = "Basis 32, symmetric 1.",
    Sample = "Length 20 of the list that follows; a word in front of it: probability 32.",
    Clone = "Length 20 of the list that follows.",
    Truncate = "Bytes 32.",
    Meter = "Meter 32.",
    CheckLength = "Bytes 16, length 20 of the list for longer ones, length 20 of the list behind it, for others.",
    PushMpls = "Entry 32, EtherType 16, in front of everything 1.",
    PopMpls = "EtherType 16.",
    PushEthernet = "Two words follow: destination 48; source 48.",
    PopEthernet = "No operands.",
    Drop = "Number 32.",
    PushNsh = "Bytes 8; words with the header follow.",
    PopNsh = "No operands.",
    Ct = "Zone 16, commit 8, helper 8, parts 8, policy 8; words with the parts follow, see `ct`.",
    CtClear = "No operands.",
    SetTunnel = "Bytes 8; words with the metadata of the header follow.",
    CtRecirc = "As Ct without parts but a plain translation, then Recirc: zone 16, translation 8, id 32.",
}

/// The headers that [`Code::Rewrite`] can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmpv6,
    Arp,
    Nd,
    Mpls,
    Nsh,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Ethernet,
        Kind::Ipv4,
        Kind::Ipv6,
        Kind::Tcp,
        Kind::Udp,
        Kind::Sctp,
        Kind::Icmp,
        Kind::Icmpv6,
        Kind::Arp,
        Kind::Nd,
        Kind::Mpls,
        Kind::Nsh,
    ];

    pub(crate) fn of(number: u64) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// A step's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step(pub(crate) u64);

impl Step {
    pub(crate) const END: Step = Step::new(Code::End, 0);

    pub(crate) const fn new(code: Code, operands: u64) -> Self {
        Self(operands << 8 | code as u64)
    }

    #[inline]
    pub(crate) fn code(self) -> Code {
        Code::ALL.get(usize::from(self.0 as u8)).copied().unwrap_or(Code::End)
    }

    /// Whether the step has this code.
    #[inline]
    pub(crate) fn is(self, code: Code) -> bool {
        self.0 as u8 == code as u8
    }

    /// `bits` bits of the operands, from bit `shift` on.
    #[inline]
    pub(crate) fn operand(self, shift: u32, bits: u32) -> u64 {
        self.0 >> (8 + shift) & ((1 << bits) - 1)
    }

    /// Returns the word that refers to a program in the arena.
    pub(crate) fn long(place: u32, len: usize) -> Self {
        Self::new(Code::Long, u64::from(place) | (len as u64) << 32)
    }

    /// The program's place and length in the arena.
    #[inline]
    pub(crate) fn place(self) -> Option<(u32, usize)> {
        let of = || (self.operand(0, 32) as u32, self.operand(32, 24) as usize);
        (self.code() == Code::Long).then(of)
    }
}

/// Word number `index` of those behind a step.
#[inline]
pub(crate) fn load(words: &[AtomicU64], index: usize) -> u64 {
    words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Compiles a flow's actions. `policies` gives the number of a timeout policy's name.
pub(crate) fn compile(
    actions: &[Action],
    policies: &dyn Fn(&str) -> u8,
) -> Result<Vec<u64>, UnsupportedFlow> {
    let mut compiler = Compiler { words: Vec::new(), userspace: 0, policies };
    compiler.list(actions, 0)?;
    Ok(compiler.words)
}

struct Compiler<'a> {
    words: Vec<u64>,
    policies: &'a dyn Fn(&str) -> u8,
    /// Userspace steps so far.
    userspace: u64,
}

impl Compiler<'_> {
    fn step(&mut self, code: Code, operands: u64) {
        self.words.push(Step::new(code, operands).0);
    }

    fn list(&mut self, actions: &[Action], depth: usize) -> Result<(), UnsupportedFlow> {
        if depth > NESTING_MAX {
            return Err(UnsupportedFlow::TooLong("actions are nested too deeply"));
        }
        let mut rest = actions;
        while let [action, behind @ ..] = rest {
            rest = behind;
            match (action, behind) {
                (Action::Ct(ct), [Action::Recirc(id), behind @ ..]) if ct::is_plain(ct) => {
                    rest = behind;
                    self.step(Code::CtRecirc, ct::plain_operands(ct) | u64::from(*id) << CT_RECIRC_ID_SHIFT);
                }
                _ => self.action(action, depth)?,
            }
            if self.words.len() > PROGRAM_WORDS_MAX {
                return Err(UnsupportedFlow::TooLong("a flow has too many actions"));
            }
        }
        Ok(())
    }

    /// Compiles a nested list behind the step at `owner`; the operand at bit `shift` gets its length.
    fn nested(
        &mut self,
        owner: usize,
        shift: u32,
        actions: &[Action],
        depth: usize,
    ) -> Result<(), UnsupportedFlow> {
        let start = self.words.len();
        self.list(actions, depth + 1)?;
        self.words[owner] |= ((self.words.len() - start) as u64) << (8 + shift);
        Ok(())
    }

    fn action(&mut self, action: &Action, depth: usize) -> Result<(), UnsupportedFlow> {
        let owner = self.words.len();
        match action {
            Action::Output(port) if (*port as usize) < NUMBERS => self.step(Code::Output, u64::from(*port)),
            Action::Output(_) => return Err(UnsupportedFlow::Unsupported("a port beyond 65535")),
            Action::Userspace(_) => {
                self.step(Code::Userspace, self.userspace);
                self.userspace += 1;
            }
            Action::Set(rewrite) => self.rewrite(rewrite)?,
            Action::PushVlan(Vlan { tpid, tci }) => {
                self.step(Code::PushVlan, u64::from(*tpid) | u64::from(*tci) << 16);
            }
            Action::PopVlan => self.step(Code::PopVlan, 0),
            Action::Sample(sample) => {
                self.step(Code::Sample, 0);
                self.words.push(u64::from(sample.probability));
                self.nested(owner, 0, &sample.actions, depth)?;
            }
            Action::Recirc(id) => self.step(Code::Recirc, u64::from(*id)),
            Action::Hash(hash) => {
                let is_symmetric = hash.algorithm == HashAlgorithm::SymmetricL4;
                self.step(Code::Hash, u64::from(hash.basis) | u64::from(is_symmetric) << 32);
            }
            Action::PushMpls(tag) => {
                self.step(Code::PushMpls, u64::from(tag.lse) | u64::from(tag.ether_type) << 32);
            }
            Action::AddMpls(tag) => {
                let is_outermost = u64::from(!tag.is_l3) << 48;
                self.step(
                    Code::PushMpls,
                    u64::from(tag.lse) | u64::from(tag.ether_type) << 32 | is_outermost,
                );
            }
            Action::PopMpls(ether_type) => self.step(Code::PopMpls, u64::from(*ether_type)),
            Action::Truncate(len_bytes) => self.step(Code::Truncate, u64::from(*len_bytes)),
            Action::PushEthernet(ethernet) => {
                self.step(Code::PushEthernet, 0);
                self.words.extend([ethernet.dst, ethernet.src].map(|mac| pack(&mac.0)));
            }
            Action::PopEthernet => self.step(Code::PopEthernet, 0),
            Action::Meter(meter) => self.step(Code::Meter, u64::from(*meter)),
            Action::Clone(actions) => {
                self.step(Code::Clone, 0);
                self.nested(owner, 0, actions, depth)?;
            }
            Action::CheckLength(check) => {
                self.step(Code::CheckLength, u64::from(check.len_bytes));
                self.nested(owner, 16, &check.greater, depth)?;
                self.nested(owner, 36, &check.less_equal, depth)?;
            }
            Action::Drop(number) => self.step(Code::Drop, u64::from(*number)),
            Action::Ct(conntrack) => {
                let policy = conntrack.timeout.as_deref().map_or(0, self.policies);
                ct::compile(&mut self.words, conntrack, policy)?;
            }
            Action::CtClear => self.step(Code::CtClear, 0),
            Action::PushNsh(header) => self.push_nsh(header)?,
            Action::PopNsh => self.step(Code::PopNsh, 0),
        }
        Ok(())
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> Result<(), UnsupportedFlow> {
        match rewrite {
            Rewrite::Priority(masked) => self.metadata(Code::Priority, masked),
            Rewrite::Mark(masked) => self.metadata(Code::Mark, masked),
            Rewrite::Ethernet(masked) => self.group(Kind::Ethernet, masked),
            Rewrite::Ipv4(masked) => self.group(Kind::Ipv4, masked),
            Rewrite::Ipv6(masked) => self.group(Kind::Ipv6, masked),
            Rewrite::Tcp(masked) => self.group(Kind::Tcp, masked),
            Rewrite::Udp(masked) => self.group(Kind::Udp, masked),
            Rewrite::Icmp(masked) => self.group(Kind::Icmp, masked),
            Rewrite::Icmpv6(masked) => self.group(Kind::Icmpv6, masked),
            Rewrite::Arp(masked) => self.group(Kind::Arp, masked),
            Rewrite::Mpls(masked) => self.group(Kind::Mpls, masked),
            Rewrite::Sctp(masked) => self.group(Kind::Sctp, masked),
            Rewrite::Nd(masked) => self.group(Kind::Nd, masked),
            Rewrite::Nsh(pair) => self.images(Kind::Nsh, [&pair.0, &pair.1].map(nsh_image)),
            Rewrite::Tunnel(tunnel) => self.set_tunnel(&outer_header(tunnel)?),
        }
        Ok(())
    }

    fn metadata(&mut self, code: Code, masked: &Masked<u32>) {
        self.step(code, 0);
        self.words.push(u64::from(masked.value & masked.mask) | u64::from(masked.mask) << 32);
    }

    fn group<T: Group>(&mut self, kind: Kind, masked: &Masked<T>) {
        self.images(kind, [masked.value.masked(masked.mask).to_image(), masked.mask.to_image()]);
    }

    /// Appends value and mask.
    fn images<T: AsRef<[u8]>>(&mut self, kind: Kind, images: [T; 2]) {
        let [value, _] = &images;
        self.step(Code::Rewrite, kind as u64 | (value.as_ref().len() as u64) << 8);
        for image in images {
            self.words.extend(image.as_ref().chunks(8).map(pack));
        }
    }

    fn set_tunnel(&mut self, tunnel: &OuterHeader) {
        let mut bytes = [0; TUNNEL_BYTES];
        let len = OuterHeader { flags: tunnel.flags | flag::SEND, ..*tunnel }.emit(&mut bytes);
        self.step(Code::SetTunnel, len as u64);
        self.words.extend(bytes[..len].chunks(8).map(pack));
    }

    fn push_nsh(&mut self, header: &Nsh) -> Result<(), UnsupportedFlow> {
        let bytes = nsh_header(header)?;
        self.step(Code::PushNsh, bytes.len() as u64);
        self.words.extend(bytes.chunks(8).map(pack));
        Ok(())
    }
}

/// Flags, TTL, metadata type, next protocol, path and context, each in whole bytes.
fn nsh_image(header: &Nsh) -> [u8; NSH_IMAGE_BYTES] {
    let mut image = [0; NSH_IMAGE_BYTES];
    image[..4].copy_from_slice(&[header.flags, header.ttl, header.md_type, header.next_proto]);
    image[4..8].copy_from_slice(&header.path.to_be_bytes());
    if let NshContext::Md1(words) = header.context {
        image[8..].copy_from_slice(words.map(u32::to_be_bytes).as_flattened());
    }
    image
}

/// The header in wire format (RFC 8300, 2.2 to 2.5).
fn nsh_header(header: &Nsh) -> Result<Vec<u8>, UnsupportedFlow> {
    let context = match (header.md_type, &header.context) {
        (1, NshContext::Md1(words)) => words.map(u32::to_be_bytes).as_flattened().to_vec(),
        (2, NshContext::Md2(bytes)) => bytes.clone(),
        (2, NshContext::None) => Vec::new(),
        _ => {
            return Err(UnsupportedFlow::Unsupported(
                "a service header whose metadata is not of the type that it says",
            ));
        }
    };
    let len = NSH_BASE_BYTES + context.len();
    if len > PUSH_NSH_BYTES_MAX {
        return Err(UnsupportedFlow::Unsupported("a service header of more than 48 bytes"));
    }
    let first = u16::from(header.flags & 3) << 12 | u16::from(header.ttl & 0x3f) << 6 | (len / 4) as u16;
    let base = [&first.to_be_bytes()[..], &[header.md_type, header.next_proto], &header.path.to_be_bytes()];
    Ok([base.concat(), context].concat())
}

/// Up to eight bytes as a word, the first byte lowest.
fn pack(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use lasthop_flow::{CheckLength, Ethernet, Ports, SampleAction, Userspace};
    use lasthop_module_api::Mac;

    use super::*;

    fn compile(actions: &[Action]) -> Result<Vec<u64>, UnsupportedFlow> {
        super::compile(actions, &|_| 0)
    }

    fn codes(words: &[u64]) -> Vec<Code> {
        words.iter().map(|word| Step(*word).code()).collect()
    }

    #[test]
    fn one_output_is_one_word() {
        let words = compile(&[Action::Output(7)]).expect("it is supported");
        assert_eq!(words, [Step::new(Code::Output, 7).0]);
        assert_eq!((Step(words[0]).operand(0, 16), Step(words[0]).place()), (7, None));
        assert_eq!(compile(&[]), Ok(vec![]));
        assert_eq!(Step::long(70_000, 12).place(), Some((70_000, 12)));
    }

    #[test]
    fn lists_lie_behind_the_steps_that_have_them() {
        let check = CheckLength {
            len_bytes: 1500,
            greater: vec![Action::Clone(vec![Action::PopVlan]), Action::Output(1)],
            less_equal: vec![Action::Userspace(Userspace::default())],
        };
        let sample = SampleAction { probability: 9, actions: vec![Action::Userspace(Userspace::default())] };
        let words = compile(&[Action::CheckLength(check), Action::Sample(sample)]).expect("it is supported");
        let step = Step(words[0]);
        assert_eq!((step.operand(0, 16), step.operand(16, 20), step.operand(36, 20)), (1500, 3, 1));
        assert_eq!(
            codes(&words[..6]),
            [Code::CheckLength, Code::Clone, Code::PopVlan, Code::Output, Code::Userspace, Code::Sample]
        );
        assert_eq!((Step(words[5]).operand(0, 20), words[6]), (1, 9));
        assert_eq!((Step(words[4]).operand(0, 16), Step(words[7]).operand(0, 16)), (0, 1));
    }

    #[test]
    fn a_rewrite_has_value_and_mask_behind_it() {
        let ports = Masked { value: Ports { src: 0x1234, dst: 9 }, mask: Ports { src: 0xff00, dst: 0 } };
        let words = compile(&[Action::Set(Rewrite::Tcp(ports))]).expect("it is supported");
        assert_eq!(words[1..], [0x12, 0xff]);
        assert_eq!(
            (Kind::of(Step(words[0]).operand(0, 8)), Step(words[0]).operand(8, 8)),
            (Some(Kind::Tcp), 4)
        );
        let push = Action::PushEthernet(Ethernet { src: Mac([1, 0, 0, 0, 0, 0]), dst: Mac([2; 6]) });
        assert_eq!(compile(&[push]).map(|words| words[2]), Ok(1));
    }

    #[test]
    fn unsupported_or_unbounded_actions_are_refused() {
        assert!(matches!(compile(&[Action::Output(70_000)]), Err(UnsupportedFlow::Unsupported(_))));
        let long = vec![Action::Output(1); PROGRAM_WORDS_MAX + 1];
        assert!(matches!(compile(&long), Err(UnsupportedFlow::TooLong(_))));
        let deep = (0..=NESTING_MAX).fold(Action::PopVlan, |inner, _| Action::Clone(vec![inner]));
        assert!(matches!(compile(&[deep]), Err(UnsupportedFlow::TooLong(_))));
    }
}
