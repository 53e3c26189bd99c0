//! Packets as connection tracking sees them.
//!
//! **Purpose.** [`PacketImage`] reads a packet's headers, [`CtTuple`] names its connection and direction, [`Editor`] changes its headers
//! with checksums that follow, and [`announced`] reads the lines by which FTP and TFTP announce other connections.
//!
//! **Contract.** All of it is arithmetic on the bytes of an image: no table, time, lock or allocation, and no `unsafe`. No packet makes it
//! panic. `lasthop-conntrack` has the connections and the rules.
//!
//! # Examples
//!
//! ```
//! use lasthop_ct_packet::{CtTuple, Editor, PacketImage};
//!
//! // A datagram from 10.0.0.1 to 10.0.0.2 without a checksum.
//! let mut frame = [0; 42];
//! frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 28]);
//! (frame[22], frame[23]) = (64, 17);
//! frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! frame[34..40].copy_from_slice(&[4, 1, 4, 2, 0, 8]);
//!
//! let image = PacketImage::parse(&frame, 42, Default::default(), 1).unwrap();
//! let tuple = image.tuple(5).unwrap();
//! assert_eq!(tuple.to_string(), "src=10.0.0.1,dst=10.0.0.2,sport=1025,dport=1026");
//! let mut editor = Editor::new(&image);
//! editor.translate(&tuple, &CtTuple { src_port: 7, ..tuple }).unwrap();
//! assert_eq!(editor.finish().applied(&frame)[34..36], [0, 7]);
//! ```
#![forbid(unsafe_code)]

mod edit;
mod helper;
mod packet;
mod tuple;

pub use edit::{CtPatch, CtRewrites, CtSplice, Editor, NotInImage, SPLICE_BYTES};
pub use helper::{
    Announced, CtHelper, FtpAddress, HELPER_IMAGE_BYTES, announced, is_cut_short, write_address,
};
pub use packet::{ChecksumState, PacketImage, tuple_at};
pub use tuple::{
    CtTuple, Direction, IS_IPV6, IpBytes, PROTO_SHIFT, TUPLE_WORDS, ZONE_SHIFT, is_icmp_error,
    is_icmp_request,
};
