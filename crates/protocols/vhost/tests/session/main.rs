//! Sessions over real sockets, with the message sequences of real front ends and of hostile ones.

mod front_ends;
mod front_side;
mod host;
mod hostile;
mod memory;
mod negotiation;
mod rings;
mod succession;
