//! Outer headers. Fields that a mask lacks match anything.

use lasthop_flow::{Tunnel, TunnelOptions};

use super::text::{Text, flags, hex, hex_bytes, masked_flags};

const FLAGS: [(u32, &str); 4] = [(1, "oam"), (2, "df"), (4, "csum"), (8, "key")];
const FLAGS_ALL: u32 = 0xf;

pub(super) fn format(tunnel: &Tunnel, mask: Option<&Tunnel>, is_verbose: bool) -> String {
    let mut text = Text::new(is_verbose);
    id(tunnel.id, mask.map(|mask| mask.id.unwrap_or_default()), &mut text);
    addresses(tunnel, mask, &mut text);
    if let Some(tos) = tunnel.tos {
        text.u8_hex("tos", tos, mask.map(|mask| mask.tos.unwrap_or_default()));
    }
    if let Some(ttl) = tunnel.ttl {
        text.u8("ttl", ttl, mask.map(|mask| mask.ttl.unwrap_or_default()));
    }
    if let Some(port) = tunnel.tp_src {
        text.u16("tp_src", port, mask.map(|mask| mask.tp_src.unwrap_or_default()));
    }
    if let Some(port) = tunnel.tp_dst {
        text.u16("tp_dst", port, mask.map(|mask| mask.tp_dst.unwrap_or_default()));
    }
    options(&tunnel.options, mask.map(|mask| &mask.options), &mut text);
    all_flags(tunnel, mask, &mut text);
    text.finish()
}

/// Formats the id. Without a mask, unlike other fields, it matches anything.
fn id(id: Option<u64>, mask: Option<u64>, text: &mut Text) {
    let Some(id) = id.filter(|_| text.is_verbose() || mask.unwrap_or_default() != 0) else { return };
    let tail = mask.filter(|mask| *mask != u64::MAX).map(|mask| format!("/{}", hex(mask)));
    text.push(format!("tun_id=0x{id:x}{}", tail.unwrap_or_default()));
}

fn addresses(tunnel: &Tunnel, mask: Option<&Tunnel>, text: &mut Text) {
    let zero = std::net::Ipv4Addr::UNSPECIFIED;
    let zero6 = std::net::Ipv6Addr::UNSPECIFIED;
    if let Some(src) = tunnel.ipv4_src {
        text.ipv4("src", src, mask.map(|mask| mask.ipv4_src.unwrap_or(zero)));
    }
    if let Some(dst) = tunnel.ipv4_dst {
        text.ipv4("dst", dst, mask.map(|mask| mask.ipv4_dst.unwrap_or(zero)));
    }
    if let Some(src) = tunnel.ipv6_src {
        text.ipv6("ipv6_src", src, mask.map(|mask| mask.ipv6_src.unwrap_or(zero6)));
    }
    if let Some(dst) = tunnel.ipv6_dst {
        text.ipv6("ipv6_dst", dst, mask.map(|mask| mask.ipv6_dst.unwrap_or(zero6)));
    }
}

fn options(options: &TunnelOptions, mask: Option<&TunnelOptions>, text: &mut Text) {
    let is_verbose = text.is_verbose();
    match options {
        TunnelOptions::None => {}
        TunnelOptions::Geneve(bytes) => {
            let mask = mask.map(|mask| match mask {
                TunnelOptions::Geneve(mask) => mask.clone(),
                _ => vec![0; bytes.len()],
            });
            text.push(format!("geneve({})", geneve(bytes, mask.as_deref(), is_verbose)));
        }
        TunnelOptions::VxlanGbp(policy) => {
            let mask = mask.map(|mask| match mask {
                TunnelOptions::VxlanGbp(mask) => mask.unwrap_or_default(),
                _ => 0,
            });
            let inner = policy.map(|policy| format!("gbp({})", gbp(policy, mask, is_verbose)));
            text.push(format!("vxlan({})", inner.unwrap_or_default()));
        }
        TunnelOptions::Erspan(bytes) => {
            let mask = mask.map(|mask| match mask {
                TunnelOptions::Erspan(mask) => mask.clone(),
                _ => vec![0; bytes.len()],
            });
            text.push(format!("erspan({})", erspan(bytes, mask.as_deref(), is_verbose)));
        }
    }
}

/// Formats the group, and the flags above it.
fn gbp(policy: u32, mask: Option<u32>, is_verbose: bool) -> String {
    let parts = |word: u32| {
        let [_, flags, high, low] = word.to_be_bytes();
        (u16::from_be_bytes([high, low]), flags)
    };
    let ((id, flags), mask) = (parts(policy), mask.map(parts));
    let mut text = Text::new(is_verbose);
    text.u16("id", id, mask.map(|(id, _)| id));
    text.u8_hex("flags", flags, mask.map(|(_, flags)| flags));
    text.finish()
}

/// Formats `struct erspan_metadata`: version, then index, or timestamp, group and a word of bits.
fn erspan(bytes: &[u8], mask: Option<&[u8]>, is_verbose: bool) -> String {
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    let word = |bytes: &[u8], at: usize| {
        u32::from_be_bytes([byte(bytes, at), byte(bytes, at + 1), byte(bytes, at + 2), byte(bytes, at + 3)])
    };
    let mut text = Text::new(is_verbose);
    let version = word(bytes, 0).swap_bytes();
    text.u8("ver", byte(bytes, 0), mask.map(|mask| byte(mask, 0)));
    match version {
        1 => {
            let tail = mask.map(|mask| format!("/{}", hex(word(mask, 4))));
            text.push(format!("idx={}{}", hex(word(bytes, 4)), tail.unwrap_or_default()));
        }
        2 => {
            text.u8("dir", byte(bytes, 11) >> 3 & 1, mask.map(|mask| byte(mask, 11) >> 3 & 1));
            text.u8_hex("hwid", byte(bytes, 11) >> 4, mask.map(|mask| byte(mask, 11) >> 4));
        }
        _ => {}
    }
    text.finish()
}

/// Formats the options in order (RFC 8926, 3.5): class, type, length in words, data.
fn geneve(bytes: &[u8], mask: Option<&[u8]>, is_verbose: bool) -> String {
    if let Some(mask) = mask.filter(|mask| mask.len() != bytes.len()) {
        return format!("value len {} different from mask len {}", bytes.len(), mask.len());
    }
    let (mut rest, mut mask_rest, mut line) = (bytes, mask, String::new());
    while let Some((header, tail)) = rest.split_first_chunk::<4>() {
        let len = usize::from(header[3] & 0x1f) * 4;
        let Some((data, next)) = tail.split_at_checked(len) else {
            return line + &format!("opt len {} greater than remaining {}", len + 4, rest.len());
        };
        let this_mask = mask_rest.and_then(|mask| mask.split_at_checked(4 + len));
        line += &geneve_option(header, data, this_mask.map(|(mask, _)| mask), is_verbose);
        (rest, mask_rest) = (next, this_mask.map(|(_, next)| next));
    }
    line
}

fn geneve_option(header: &[u8; 4], data: &[u8], mask: Option<&[u8]>, is_verbose: bool) -> String {
    let [c0, c1, kind, len] = *header;
    let mask = mask.and_then(|mask| mask.split_first_chunk::<4>());
    let mut text = Text::new(is_verbose);
    text.u16_hex(
        "class",
        u16::from_be_bytes([c0, c1]),
        mask.map(|(mask, _)| u16::from_be_bytes([mask[0], mask[1]])),
    );
    text.u8_hex("type", kind, mask.map(|(mask, _)| mask[2]));
    let len_mask = mask.map(|(mask, _)| if mask[3] & 0x1f == 0x1f { u8::MAX } else { mask[3] & 0x1f });
    text.u8("len", (len & 0x1f) * 4, len_mask);
    let data_mask = mask.map(|(_, mask)| mask);
    if !data.is_empty() && (is_verbose || data_mask.is_none_or(|mask| mask.iter().any(|byte| *byte != 0))) {
        let tail = data_mask.filter(|mask| mask.iter().any(|byte| *byte != 0xff));
        text.push(hex_bytes(data) + &tail.map(|mask| format!("/{}", hex_bytes(mask))).unwrap_or_default());
    }
    format!("{{{}}}", text.finish())
}

fn bits(tunnel: &Tunnel) -> u32 {
    let flags = [(tunnel.oam, 1), (tunnel.dont_fragment, 2), (tunnel.csum, 4), (tunnel.id.is_some(), 8)];
    flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
}

fn all_flags(tunnel: &Tunnel, mask: Option<&Tunnel>, text: &mut Text) {
    let value = bits(tunnel);
    let Some(mask) = mask else { return text.push(format!("flags({})", flags(value, &FLAGS, "|"))) };
    // The presence of a key is always matched if the packet has one.
    let mask = bits(mask) & !8 | value & 8;
    if text.is_verbose() || mask != 0 {
        text.push(format!("flags({})", masked_flags(value, mask, FLAGS_ALL, &FLAGS)));
    }
}
