//! Actions as attributes (`OVS_ACTION_ATTR_*`).

use lasthop_flow::{
    Action, CheckLength, Ethernet, Group, Hash, HashAlgorithm, MplsTag, SampleAction, Userspace,
    VLAN_PRESENT, Vlan,
};
use lasthop_wire::headers::{ETHERTYPES_MPLS, ETHERTYPES_VLAN};

use crate::attr::{Attr, Attrs, Writer};
use crate::bounds::{ACTION_BYTES_MAX, ACTION_DEPTH_MAX, PORTS_MAX};
use crate::conntrack::array;
use crate::key::encode_nsh;
use crate::refusal::{Errno, Refusal};
use crate::uapi::action as uapi;
use crate::{conntrack, nsh, rewrite, uapi::key as key_uapi};

/// Bytes of an Ethernet header, the least that a truncated packet keeps.
const TRUNCATED_BYTES_MIN: u32 = 14;

/// Decodes a list of actions.
///
/// # Errors
/// EINVAL for an action that is unknown or invalid by itself, EMSGSIZE for a list longer than 32 KiB,
/// EOVERFLOW for lists nested deeper than 16.
pub fn decode(bytes: &[u8]) -> Result<Vec<Action>, Refusal> {
    if bytes.len() > ACTION_BYTES_MAX {
        return Err(Refusal::new(Errno::EMSGSIZE, "the actions are longer than 32768 bytes"));
    }
    decode_list(Attrs::new(bytes), ACTION_DEPTH_MAX)
}

fn decode_list(attrs: Attrs<'_>, depth_left: usize) -> Result<Vec<Action>, Refusal> {
    let too_deep = Refusal::new(Errno::EOVERFLOW, "actions are nested deeper than 16");
    let depth_left = depth_left.checked_sub(1).ok_or(too_deep)?;
    // The exact number: a flow's actions are kept as long as the flow.
    let mut actions = Vec::with_capacity(attrs.clone().count());
    for attr in attrs {
        actions.push(decode_one(&attr?, depth_left)?);
    }
    Ok(actions)
}

fn decode_one(attr: &Attr<'_>, depth_left: usize) -> Result<Action, Refusal> {
    Ok(match attr.kind {
        uapi::OUTPUT => decode_output(attr)?,
        uapi::USERSPACE => Action::Userspace(decode_userspace(attr.nested())?),
        uapi::SET => Action::Set(rewrite::decode(attr.nested())?),
        uapi::SET_MASKED => Action::Set(rewrite::decode_masked(attr.nested())?),
        uapi::PUSH_VLAN => Action::PushVlan(decode_vlan(array(attr)?)?),
        uapi::POP_VLAN => empty(attr, Action::PopVlan)?,
        uapi::SAMPLE => Action::Sample(decode_sample(attr.nested(), depth_left)?),
        uapi::RECIRC => Action::Recirc(u32_of(attr)?),
        uapi::HASH => Action::Hash(decode_hash(array(attr)?)?),
        uapi::PUSH_MPLS => Action::PushMpls(decode_push_mpls(attr)?),
        uapi::POP_MPLS => Action::PopMpls(u16::from_be_bytes(array(attr)?)),
        uapi::ADD_MPLS => Action::AddMpls(decode_add_mpls(array(attr)?)?),
        uapi::CT => Action::Ct(Box::new(conntrack::decode(attr.nested())?)),
        uapi::CT_CLEAR => empty(attr, Action::CtClear)?,
        uapi::DROP => Action::Drop(u32_of(attr)?),
        uapi::TRUNC => decode_truncate(attr)?,
        uapi::PUSH_ETH => Action::PushEthernet(Ethernet::from_image(&array(attr)?)),
        uapi::POP_ETH => empty(attr, Action::PopEthernet)?,
        uapi::PUSH_NSH => Action::PushNsh(Box::new(decode_push_nsh(attr.nested())?)),
        uapi::POP_NSH => empty(attr, Action::PopNsh)?,
        uapi::METER => Action::Meter(u32_of(attr)?),
        uapi::CLONE => Action::Clone(decode_list(attr.nested(), depth_left)?),
        uapi::CHECK_PKT_LEN => Action::CheckLength(decode_check(attr.nested(), depth_left)?),
        _ => return Err(Refusal::invalid("an action is of a type that is not known here")),
    })
}

fn decode_output(attr: &Attr<'_>) -> Result<Action, Refusal> {
    let port = u32_of(attr)?;
    let is_port = port < PORTS_MAX;
    is_port.then_some(Action::Output(port)).ok_or(Refusal::invalid("the output port is beyond 65535"))
}

fn decode_truncate(attr: &Attr<'_>) -> Result<Action, Refusal> {
    let len = u32_of(attr)?;
    let too_short = Refusal::invalid("a packet cannot be truncated to less than 14 bytes");
    if len < TRUNCATED_BYTES_MIN { Err(too_short) } else { Ok(Action::Truncate(len)) }
}

fn u32_of(attr: &Attr<'_>) -> Result<u32, Refusal> {
    array(attr).map(u32::from_ne_bytes)
}

fn empty(attr: &Attr<'_>, action: Action) -> Result<Action, Refusal> {
    array::<0>(attr).map(|_| action)
}

fn decode_userspace(attrs: Attrs<'_>) -> Result<Userspace, Refusal> {
    let (mut port_id, mut userspace) = (None, Userspace::default());
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::USERSPACE_PID => port_id = Some(u32_of(&attr)?),
            uapi::USERSPACE_USERDATA => userspace.user_data = Some(attr.payload.to_vec()),
            uapi::USERSPACE_EGRESS_TUN_PORT => userspace.egress_tunnel_port = Some(u32_of(&attr)?),
            uapi::USERSPACE_ACTIONS => userspace.has_actions = true,
            _ => {}
        }
    }
    userspace.port_id = port_id.ok_or(Refusal::invalid("a userspace action has no port id"))?;
    Ok(userspace)
}

fn decode_vlan([a, b, c, d]: [u8; 4]) -> Result<Vlan, Refusal> {
    let vlan = Vlan { tpid: u16::from_be_bytes([a, b]), tci: u16::from_be_bytes([c, d]) };
    let is_tag = ETHERTYPES_VLAN.contains(&vlan.tpid) && vlan.tci & VLAN_PRESENT != 0;
    is_tag
        .then_some(vlan)
        .ok_or(Refusal::invalid("a VLAN tag to push needs TPID 0x8100 or 0x88a8, and TCI bit 0x1000"))
}

fn decode_sample(attrs: Attrs<'_>, depth_left: usize) -> Result<SampleAction, Refusal> {
    let (mut probability, mut actions) = (None, None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::SAMPLE_PROBABILITY => probability = Some(u32_of(&attr)?),
            uapi::SAMPLE_ACTIONS => actions = Some(decode_list(attr.nested(), depth_left)?),
            _ => {}
        }
    }
    let sample = probability.zip(actions).map(|(probability, actions)| SampleAction { probability, actions });
    sample.ok_or(Refusal::invalid("a sample action has no probability or no actions"))
}

fn decode_hash(bytes: [u8; 8]) -> Result<Hash, Refusal> {
    let [a, b, c, d, basis @ ..] = bytes;
    let algorithm = match u32::from_ne_bytes([a, b, c, d]) {
        0 => HashAlgorithm::L4,
        1 => HashAlgorithm::SymmetricL4,
        _ => return Err(Refusal::invalid("the hash algorithm is not known here")),
    };
    Ok(Hash { algorithm, basis: u32::from_ne_bytes(basis) })
}

/// Decodes a push of an MPLS label. The structure has six bytes and may be padded to eight.
fn decode_push_mpls(attr: &Attr<'_>) -> Result<MplsTag, Refusal> {
    let padded = match attr.payload.len() {
        6 => array::<6>(attr)?,
        _ => {
            let [a, b, c, d, e, f, ..] = array::<8>(attr)?;
            [a, b, c, d, e, f]
        }
    };
    let [a, b, c, d, e, f] = padded;
    decode_add_mpls([a, b, c, d, e, f, 0, 0]).map(|tag| MplsTag { is_l3: true, ..tag })
}

fn decode_add_mpls([a, b, c, d, e, f, g, h]: [u8; 8]) -> Result<MplsTag, Refusal> {
    let ether_type = u16::from_be_bytes([e, f]);
    let is_l3 = u16::from_ne_bytes([g, h]) & uapi::MPLS_L3 != 0;
    if !ETHERTYPES_MPLS.contains(&ether_type) {
        return Err(Refusal::invalid("an MPLS label needs EtherType 0x8847 or 0x8848"));
    }
    Ok(MplsTag { lse: u32::from_be_bytes([a, b, c, d]), ether_type, is_l3 })
}

fn decode_push_nsh(mut attrs: Attrs<'_>) -> Result<lasthop_flow::Nsh, Refusal> {
    let wrong = Refusal::invalid("a network service header to push has to be one attribute");
    let attr = attrs.next().ok_or(wrong)??;
    if attr.kind != key_uapi::NSH || attrs.next().is_some() {
        return Err(wrong);
    }
    nsh::decode(attr.nested())
}

fn decode_check(attrs: Attrs<'_>, depth_left: usize) -> Result<CheckLength, Refusal> {
    let (mut len, mut greater, mut less_equal) = (None, None, None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::CHECK_LEN => len = Some(u16::from_ne_bytes(array(&attr)?)),
            uapi::CHECK_GREATER => greater = Some(decode_list(attr.nested(), depth_left)?),
            uapi::CHECK_LESS_EQUAL => less_equal = Some(decode_list(attr.nested(), depth_left)?),
            _ => {}
        }
    }
    let (Some(len_bytes @ 1..), Some(greater), Some(less_equal)) = (len, greater, less_equal) else {
        return Err(Refusal::invalid("a check of the length needs a length and actions for either case"));
    };
    Ok(CheckLength { len_bytes, greater, less_equal })
}

/// Encodes a list of actions.
pub fn encode(writer: &mut Writer, actions: &[Action]) {
    for action in actions {
        encode_one(writer, action);
    }
}

fn encode_one(writer: &mut Writer, action: &Action) {
    match action {
        Action::Output(port) => writer.put_fixed(uapi::OUTPUT, &port.to_ne_bytes()),
        Action::Userspace(userspace) => {
            writer.nest(uapi::USERSPACE, |nested| encode_userspace(nested, userspace))
        }
        Action::Set(rewrite) => rewrite::encode(writer, rewrite),
        Action::PushVlan(vlan) => {
            writer.put(uapi::PUSH_VLAN, [vlan.tpid.to_be_bytes(), vlan.tci.to_be_bytes()].as_flattened());
        }
        Action::PopVlan => writer.put(uapi::POP_VLAN, &[]),
        Action::Sample(sample) => writer.nest(uapi::SAMPLE, |nested| {
            nested.put(uapi::SAMPLE_PROBABILITY, &sample.probability.to_ne_bytes());
            nested.nest(uapi::SAMPLE_ACTIONS, |list| encode(list, &sample.actions));
        }),
        Action::Recirc(id) => writer.put(uapi::RECIRC, &id.to_ne_bytes()),
        Action::Hash(hash) => {
            writer.put(
                uapi::HASH,
                [algorithm(hash.algorithm).to_ne_bytes(), hash.basis.to_ne_bytes()].as_flattened(),
            );
        }
        Action::PushMpls(tag) => writer.put(uapi::PUSH_MPLS, &add_mpls(&MplsTag { is_l3: false, ..*tag })),
        Action::PopMpls(ether_type) => writer.put(uapi::POP_MPLS, &ether_type.to_be_bytes()),
        Action::AddMpls(tag) => writer.put(uapi::ADD_MPLS, &add_mpls(tag)),
        Action::Ct(conntrack) => writer.nest(uapi::CT, |nested| conntrack::encode(nested, conntrack)),
        Action::CtClear => writer.put(uapi::CT_CLEAR, &[]),
        Action::Drop(why) => writer.put(uapi::DROP, &why.to_ne_bytes()),
        Action::Truncate(len) => writer.put(uapi::TRUNC, &len.to_ne_bytes()),
        Action::PushEthernet(ethernet) => writer.put(uapi::PUSH_ETH, &ethernet.to_image()),
        Action::PopEthernet => writer.put(uapi::POP_ETH, &[]),
        Action::PushNsh(header) => writer.nest(uapi::PUSH_NSH, |nested| encode_nsh(nested, header)),
        Action::PopNsh => writer.put(uapi::POP_NSH, &[]),
        Action::Meter(id) => writer.put(uapi::METER, &id.to_ne_bytes()),
        Action::Clone(actions) => writer.nest(uapi::CLONE, |list| encode(list, actions)),
        Action::CheckLength(check) => writer.nest(uapi::CHECK_PKT_LEN, |nested| {
            nested.put(uapi::CHECK_LEN, &check.len_bytes.to_ne_bytes());
            nested.nest(uapi::CHECK_GREATER, |list| encode(list, &check.greater));
            nested.nest(uapi::CHECK_LESS_EQUAL, |list| encode(list, &check.less_equal));
        }),
    }
}

fn encode_userspace(writer: &mut Writer, userspace: &Userspace) {
    writer.put(uapi::USERSPACE_PID, &userspace.port_id.to_ne_bytes());
    if let Some(user_data) = &userspace.user_data {
        writer.put(uapi::USERSPACE_USERDATA, user_data);
    }
    writer.put_some(uapi::USERSPACE_EGRESS_TUN_PORT, userspace.egress_tunnel_port.map(u32::to_ne_bytes));
    writer.put_flag(uapi::USERSPACE_ACTIONS, userspace.has_actions);
}

fn algorithm(algorithm: HashAlgorithm) -> u32 {
    match algorithm {
        HashAlgorithm::L4 => 0,
        HashAlgorithm::SymmetricL4 => 1,
    }
}

/// Encodes all eight bytes of the C structure; the last two are padding, or flags.
fn add_mpls(tag: &MplsTag) -> [u8; 8] {
    let ([a, b, c, d], [e, f]) = (tag.lse.to_be_bytes(), tag.ether_type.to_be_bytes());
    let [g, h] = if tag.is_l3 { uapi::MPLS_L3.to_ne_bytes() } else { [0, 0] };
    [a, b, c, d, e, f, g, h]
}
