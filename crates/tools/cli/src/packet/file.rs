//! A packet of a capture file, pcap or pcapng.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use lasthop_runtime::fault::Fault;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

use super::WrittenFrame;

/// Bytes of a block at most: far more than one has with a frame.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Packet number `number` of a file, from 1 on.
///
/// # Errors
/// One sentence with the remedy.
pub(crate) fn read(path: &Path, number: usize) -> Result<WrittenFrame, Fault> {
    let shown = path.display();
    let file = File::open(path)
        .map_err(|error| Fault::params(format!("cannot open the capture file {shown}: {error}")))?;
    let no_capture =
        || Fault::params(format!("{shown} is no capture file; lasthop capture and tcpdump -w write one"));
    let mut packets = Packets { links: Vec::new(), seen: 0 };
    let mut reader =
        create_reader(BLOCK_BYTES_MAX, Box::new(file) as Box<dyn Read + Send>).map_err(|_| no_capture())?;
    loop {
        match reader.next() {
            Ok((offset, block)) => {
                let found = packets.next(&block).filter(|_| packets.seen == number);
                if let Some((link, frame)) = found {
                    let is_ethernet = link == Linktype::ETHERNET;
                    return is_ethernet.then_some(frame).ok_or_else(|| {
                        Fault::params(format!(
                            "packet {number} of {shown} is none of Ethernet (its link type is {})",
                            link.0
                        ))
                    });
                }
                reader.consume(offset);
            }
            Err(PcapError::Incomplete(_)) => reader.refill().map_err(|_| no_capture())?,
            Err(PcapError::Eof) => break,
            Err(_) => return Err(no_capture()),
        }
    }
    let seen = packets.seen;
    Err(Fault::params(format!("{shown} has {seen} packets, and no packet {number}; the first one is 1")))
}

/// The packets of a file, one after the other.
struct Packets {
    /// The link types of its interfaces.
    links: Vec<Linktype>,
    seen: usize,
}

impl Packets {
    /// The packet in a block, if it has one.
    fn next(&mut self, block: &PcapBlockOwned<'_>) -> Option<(Linktype, WrittenFrame)> {
        let (interface, data, captured, len_bytes) = match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.links = vec![header.network];
                return None;
            }
            PcapBlockOwned::Legacy(packet) => (0, packet.data, packet.caplen, packet.origlen),
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.links.clear();
                return None;
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                self.links.push(interface.linktype);
                return None;
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                (packet.if_id as usize, packet.data, packet.caplen, packet.origlen)
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                (0, packet.data, packet.origlen, packet.origlen)
            }
            PcapBlockOwned::NG(_) => return None,
        };
        self.seen += 1;
        // Blocks are padded.
        let bytes = data.get(..captured as usize).unwrap_or(data).to_vec();
        let link = self.links.get(interface).copied()?;
        Some((link, WrittenFrame { len_bytes: len_bytes.max(bytes.len() as u32), bytes }))
    }
}
