//! The BPF programs at an uplink: made of a few instructions each, attached by links, so that nothing is left of them once
//! their descriptors are closed, however the process ends.
//!
//! ```text
//!                     wire                                        wire
//!                      │ ^                                         │ ^
//!   af_xdp:  [redirect]│ │ past all programs    af_packet:         │ │ our socket's, known by their mark
//!        XDP sockets <─┘ │                      our socket <───────┤ │
//!                        │                      (not the marked)   │ │
//!                  [keep out]                              [keep out] [keep in | to the tap]
//!                        X                         marked only ────┤ ^
//!                      stack                                       v │
//!                                                                 stack
//! ```

mod instruction;
mod programs;
mod sys;

pub(crate) use programs::{Hook, Program, SocketMap};
