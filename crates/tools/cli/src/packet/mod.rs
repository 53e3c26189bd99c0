//! A packet as a user writes it: fields as Open vSwitch's flows have them, hexadecimal bytes, or a capture file.
//!
//! ```text
//!   tcp,dl_src=02:00:00:00:00:01,nw_dst=10.0.0.2,tp_dst=443 ─> PacketFields ─> bytes with right checksums
//!   02:00:00:00:00:02 02 00 ... ────────────────────────────────────────────> bytes
//!   file.pcap, --packet 3 ──────────────────────────────────────────────────> bytes, length on the wire
//! ```

mod fields;
mod file;
mod frame;

use lasthop_module_api::Mac;
use lasthop_runtime::fault::Fault;

pub(crate) use file::read as read_file;

/// Digits that a row of bytes has at least: an Ethernet header.
const HEX_DIGITS_MIN: usize = 28;

/// A frame: its first bytes, and its length in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenFrame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len_bytes: u32,
}

/// The frame that `text` stands for. `mac` is the source address of one that names none.
///
/// # Errors
/// One sentence that names the word.
pub(crate) fn written(text: &str, mac: impl FnOnce() -> Result<Mac, Fault>) -> Result<WrittenFrame, Fault> {
    let bytes = match row_of_bytes(text) {
        Some(bytes) => bytes,
        None => frame::built(&fields::read(text)?, mac)?,
    };
    let len_bytes = bytes.len() as u32; // of a command line
    Ok(WrittenFrame { bytes, len_bytes })
}

/// Bytes as hexadecimal digits, with or without 0x, blanks and colons.
fn row_of_bytes(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    let digits: String = text.strip_prefix("0x").unwrap_or(text).split([' ', ':', '\n', '\t']).collect();
    lasthop_api::explain::bytes_of(&digits).filter(|_| digits.len() >= HEX_DIGITS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<Vec<u8>, Fault> {
        written(text, || Ok(Mac([2, 0, 0, 0, 0, 9]))).map(|frame| frame.bytes)
    }

    #[test]
    fn bytes_are_written_in_several_ways() {
        let wanted = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6];
        for text in [
            "0200000000020200000000010806",
            "0x0200000000020200000000010806",
            "02:00:00:00:00:02 02 00 00 00 00 01 0806",
        ] {
            assert_eq!(bytes(text).expect(text), wanted);
        }
        assert!(bytes("0200").expect_err("short").message.contains("0200"));
    }

    #[test]
    fn fields_become_a_frame_that_another_implementation_reads() {
        let text = "tcp,dl_dst=02:00:00:00:00:02,dl_vlan=5,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=9,tp_src=1000,tp_dst=443,tcp_flags=syn";
        let frame = bytes(text).expect(text);
        let read = etherparse::PacketHeaders::from_ethernet_slice(&frame).expect("a frame");
        let ethernet = read.link.and_then(etherparse::LinkHeader::ethernet2).expect("Ethernet");
        assert_eq!((ethernet.source, ethernet.destination), ([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 2]));
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = read.net else { panic!("no IPv4") };
        assert_eq!((ip.source, ip.destination, ip.time_to_live), ([10, 0, 0, 1], [10, 0, 0, 2], 9));
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        let Some(etherparse::TransportHeader::Tcp(tcp)) = read.transport else { panic!("no TCP") };
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.syn, tcp.ack), (1000, 443, true, false));
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, &[]).expect("it is short"));
    }

    #[test]
    fn each_protocol_has_a_word() {
        let lens = [
            ("arp,arp_tpa=10.0.0.2", 42),
            ("icmp,icmp_type=8", 42),
            ("udp6,tp_dst=53", 62),
            ("ip,nw_proto=47", 34),
        ];
        for (text, len) in lens {
            assert_eq!(bytes(text).map(|frame| frame.len()), Ok(len), "{text}");
        }
        assert_eq!(bytes("dl_type=0x88cc").expect("a frame")[12..14], [0x88, 0xcc]);
        assert_eq!(bytes("icmp6,ipv6_src=fe80::1,ipv6_dst=ff02::1").expect("a frame")[20], 58);
    }

    #[test]
    fn a_wrong_word_is_named_with_the_right_one() {
        for (text, words) in [
            ("tpc,nw_src=10.0.0.1", "tcp"),
            ("tcp,nw_scr=10.0.0.1", "nw_src"),
            ("tcp,nw_src=10.0.0", "10.0.0"),
            ("tcp,nw_src=fe80::1", "fe80::1"),
            ("udp,tp_dst=70000", "70000"),
            ("in_port=1,tcp", "--from"),
            ("tcp,dl_vlan=4096", "4096"),
            ("", "empty"),
        ] {
            let fault = bytes(text).expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
    }
}
