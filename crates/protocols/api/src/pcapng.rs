//! Writes captures as pcapng (IETF draft-ietf-opsawg-pcapng): one section, one interface for each vnic, little-endian.
//!
//! ```text
//!   Section Header | Interface Description x n | Enhanced Packet ... | Interface Statistics x n
//! ```

use lasthop_engine::{CaptureDirection, CapturedFrame};

/// Block types (section 4).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
pub const INTERFACE_STATISTICS: u32 = 5;
pub const ENHANCED_PACKET: u32 = 6;

/// Distinguishes a little-endian section from a big-endian one.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Ethernet (LINKTYPE_ETHERNET).
const LINKTYPE_ETHERNET: u16 = 1;
/// Unit of times: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Options of any block (section 3.5).
const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
/// Options of the section header.
const SHB_USERAPPL: u16 = 4;
/// Options of an interface description.
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
/// Options of a packet.
const EPB_FLAGS: u16 = 2;
/// Options of an interface's statistics.
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
pub const ISB_IFDROP: u16 = 5;

/// The statistics of an interface at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub start_ns: u64,
    pub end_ns: u64,
    /// Number of frames to capture.
    pub received: u64,
    /// Number of those that were lost.
    pub lost: u64,
}

/// Appends the header of a file with interfaces of these names.
pub fn begin(out: &mut Vec<u8>, names: &[String], snap_len_bytes: u32) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1_u16.to_le_bytes());
        out.extend_from_slice(&0_u16.to_le_bytes());
        out.extend_from_slice(&u64::MAX.to_le_bytes()); // of unknown length
        option(out, SHB_USERAPPL, concat!("lasthop ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(out, OPT_END, &[]);
    });
    for name in names {
        block(out, INTERFACE_DESCRIPTION, |out| {
            out.extend_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
            out.extend_from_slice(&0_u16.to_le_bytes());
            out.extend_from_slice(&snap_len_bytes.to_le_bytes());
            option(out, IF_NAME, name.as_bytes());
            option(out, IF_TSRESOL, &[NANOSECONDS]);
            option(out, OPT_END, &[]);
        });
    }
}

/// Appends a frame; `bytes` are its captured ones.
pub fn packet(out: &mut Vec<u8>, captured: &CapturedFrame, bytes: &[u8]) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&u32::from(captured.interface).to_le_bytes());
        out.extend_from_slice(&time(captured.time_ns));
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes()); // below the snap length
        out.extend_from_slice(&captured.len_bytes.to_le_bytes());
        padded(out, bytes);
        let direction: u32 = match captured.direction {
            CaptureDirection::Inbound => 1,
            CaptureDirection::Outbound => 2,
        };
        option(out, EPB_FLAGS, &direction.to_le_bytes());
        if let Some(reason) = captured.dropped {
            let comment = format!("dropped: {} - {}", reason.name(), reason.meaning());
            option(out, OPT_COMMENT, comment.as_bytes());
        }
        option(out, OPT_END, &[]);
    });
}

/// Appends the statistics of an interface at the end.
pub fn statistics(out: &mut Vec<u8>, interface: u16, known: &Statistics) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&u32::from(interface).to_le_bytes());
        out.extend_from_slice(&time(known.end_ns));
        option(out, ISB_STARTTIME, &time(known.start_ns));
        option(out, ISB_ENDTIME, &time(known.end_ns));
        option(out, ISB_IFRECV, &known.received.to_le_bytes());
        option(out, ISB_IFDROP, &known.lost.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Encodes a time: the upper half first, each half little-endian.
fn time(time_ns: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((time_ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(time_ns as u32).to_le_bytes());
    bytes
}

/// Appends a block: its type and length, the output of `body`, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - start + 4) as u32; // a frame and some words
    out.extend_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes()); // ours are short
    padded(out, value);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    out.resize(out.len() + padding, 0); // at any length in front of the file
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::DropReason;
    use pcap_parser::{Block, PcapNGOption, parse_pcapng};

    use super::*;

    fn captured(interface: u16, direction: CaptureDirection, dropped: Option<DropReason>) -> CapturedFrame {
        let time_ns = 1_700_000_000_123_456_789;
        CapturedFrame { time_ns, interface, direction, len_bytes: 1514, dropped }
    }

    fn value<'a>(options: &'a [PcapNGOption<'a>], code: u16) -> Option<&'a [u8]> {
        let found = options.iter().find(|option| option.code.0 == code)?;
        Some(&found.value[..usize::from(found.len)])
    }

    #[test]
    fn another_reader_reads_what_was_written() {
        let greeting = b"hello";
        let mut file = greeting.to_vec();
        begin(&mut file, &["vm1".to_owned(), "uplink".to_owned()], 262_144);
        packet(&mut file, &captured(0, CaptureDirection::Inbound, None), &[7; 61]);
        packet(&mut file, &captured(1, CaptureDirection::Outbound, Some(DropReason::RxQueueFull)), &[]);
        let known = Statistics { start_ns: 1 << 40, end_ns: (1 << 41) + 5, received: 10, lost: 3 };
        statistics(&mut file, 1, &known);
        let (rest, capture) = parse_pcapng(&file[greeting.len()..]).expect("a sound file");
        assert!(rest.is_empty());
        let [section] = &capture.sections[..] else { panic!("{} sections", capture.sections.len()) };
        let [
            Block::SectionHeader(header),
            Block::InterfaceDescription(vm1),
            Block::InterfaceDescription(uplink),
            blocks @ ..,
        ] = &section.blocks[..]
        else {
            panic!("{:?}", section.blocks)
        };
        assert_eq!((header.major_version, header.minor_version, header.section_len), (1, 0, -1));
        assert_eq!((vm1.linktype.0, vm1.snaplen, vm1.if_tsresol), (1, 262_144, 9));
        assert_eq!([vm1, uplink].map(|named| value(&named.options, 2).unwrap()), [&b"vm1"[..], b"uplink"]);
        let [Block::EnhancedPacket(whole), Block::EnhancedPacket(dropped), Block::InterfaceStatistics(end)] =
            blocks
        else {
            panic!("{blocks:?}")
        };
        assert_eq!((whole.if_id, whole.caplen, whole.origlen), (0, 61, 1514));
        assert_eq!(u64::from(whole.ts_high) << 32 | u64::from(whole.ts_low), 1_700_000_000_123_456_789);
        assert_eq!(whole.data[..61], [7; 61]);
        assert_eq!(value(&whole.options, 2), Some(&[1, 0, 0, 0][..]));
        assert_eq!(value(&whole.options, 1), None);
        assert_eq!((dropped.if_id, dropped.caplen), (1, 0));
        assert_eq!(value(&dropped.options, 2), Some(&[2, 0, 0, 0][..]));
        let comment = std::str::from_utf8(value(&dropped.options, 1).expect("a comment")).expect("text");
        assert!(comment.starts_with("dropped: rx_queue_full - The receiver has no buffers"), "{comment}");
        assert_eq!(end.if_id, 1);
        assert_eq!(value(&end.options, ISB_IFRECV), Some(&10_u64.to_le_bytes()[..]));
        assert_eq!(value(&end.options, ISB_IFDROP), Some(&3_u64.to_le_bytes()[..]));
    }
}
