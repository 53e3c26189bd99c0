//! Further calls of the controller process: datagrams of the datapath socket.

use super::{Call, NO_ADDRESS, call};

pub(in crate::sandbox) const CALLS: &[Call] = &[
    Call::any(call!(SYS_recvfrom), "receives upcalls, and answers of the switch process"),
    Call::with(call!(SYS_sendto), &[NO_ADDRESS], "sends flows, and packets to execute"),
];
