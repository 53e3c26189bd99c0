//! Bounds of opened devices.
//!
//! | name | value | unit | reason |
//! |---|---|---|---|
//! | [`SOCKET_BYTES`] | 8388608 | bytes | buffer of a packet socket: TCP's usual largest window |

/// Bytes that a packet socket may hold in each direction.
pub(crate) const SOCKET_BYTES: i32 = 8 << 20;
