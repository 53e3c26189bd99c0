//! The cookie of ovs-vswitchd's userspace actions (`struct user_action_cookie` of 3.1, 48 bytes): the reason of an
//! upcall. The switch only passes it on; here it is printed for operators.
//!
//! ```text
//!    0      4         8        24 ...
//!    | type | in port | bridge | by type
//! ```

use super::Style;
use super::text::flags;

const BYTES: usize = 48;
const SLOW_PATH: [(u32, &str); 7] =
    [(1, "cfm"), (2, "bfd"), (4, "lacp"), (8, "stp"), (16, "lldp"), (32, "action"), (64, "match")];

struct Cookie<'a>(&'a [u8; BYTES]);

impl Cookie<'_> {
    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.u8(at), self.u8(at + 1)])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.u8(at), self.u8(at + 1), self.u8(at + 2), self.u8(at + 3)])
    }

    fn be64(&self, at: usize) -> u64 {
        (at..at + 8).fold(0, |word, at| word << 8 | u64::from(self.u8(at)))
    }
}

/// Formats a cookie, with a comma in front; `None` if it is no such cookie.
pub(super) fn format(user_data: &[u8], style: Style<'_>) -> Option<String> {
    let cookie = Cookie(user_data.try_into().ok()?);
    Some(match cookie.u16(0) {
        1 => {
            let tci = u16::from_be(cookie.u16(24));
            format!(",sFlow(vid={},pcp={},output={})", tci & 0xfff, tci >> 13, cookie.u32(28))
        }
        2 => format!(",slow_path({})", flags(cookie.u32(28), &SLOW_PATH, ",")),
        3 => flow_sample(&cookie, style),
        4 => format!(",ipfix(output_port={})", style.port(cookie.u32(24))),
        5 => controller(&cookie),
        _ => return None,
    })
}

fn flow_sample(cookie: &Cookie<'_>, style: Style<'_>) -> String {
    let direction = match cookie.u32(44) {
        1 => ",ingress",
        2 => ",egress",
        _ => "",
    };
    format!(
        ",flow_sample(probability={},collector_set_id={},obs_domain_id={},obs_point_id={},output_port={}{direction})",
        cookie.u16(24),
        cookie.u32(28),
        cookie.u32(32),
        cookie.u32(36),
        style.port(cookie.u32(40)),
    )
}

fn controller(cookie: &Cookie<'_>) -> String {
    format!(
        ",controller(reason={},dont_send={},continuation={},recirc_id={},rule_cookie={},controller_id={},max_len={})",
        cookie.u16(26),
        u8::from(cookie.u8(24) != 0),
        u8::from(cookie.u8(25) != 0),
        cookie.u32(28),
        super::text::hex(cookie.be64(32)),
        cookie.u16(40),
        cookie.u16(42),
    )
}
