//! TCP: new, established and invalid segments, and timeouts.

use lasthop_conntrack::{CtMetadata, CtPolicy, CtProtocol, CtRecord, TcpState};

use crate::bench::{Bench, EST, INVALID, NEW, REPLY, Records, commit};
use crate::frames::{ACK, FIN, RST, SYN, Tcp, at};

const CLIENT: &str = "10.0.0.1:40000";
const SERVER: &str = "10.0.0.2:80";

fn out(flags: u8, seq: u32, ack: u32) -> Tcp {
    Tcp::new(at(CLIENT), at(SERVER), flags, seq, ack)
}

fn back(flags: u8, seq: u32, ack: u32) -> Tcp {
    Tcp::new(at(SERVER), at(CLIENT), flags, seq, ack)
}

/// After a handshake: the client has sent up to 1001, the server up to 5001.
fn established() -> Bench {
    let mut bench = Bench::default();
    assert_eq!(bench.state(&out(SYN, 1000, 0).frame(), &commit()), NEW);
    assert_eq!(bench.state(&back(SYN | ACK, 5000, 1001).frame(), &commit()), REPLY);
    assert_eq!(bench.state(&out(ACK, 1001, 5001).frame(), &commit()), EST);
    bench
}

fn record(bench: &Bench) -> CtRecord {
    bench.tracker.next_record(0, bench.now_ms).expect("a connection").1
}

fn tcp_state(bench: &Bench) -> TcpState {
    let CtProtocol::Tcp { state, .. } = record(bench).protocol else { panic!("no TCP") };
    state
}

#[test]
fn a_connection_from_handshake_to_end() {
    let mut bench = established();
    let seconds = |bench: &Bench| record(bench).left_ms / 1000;
    assert_eq!((tcp_state(&bench), seconds(&bench)), (TcpState::Established, 432_000));
    assert!(record(&bench).is_assured);
    assert_eq!(bench.state(&out(ACK, 1001, 5001).with(b"hello").frame(), &commit()), EST);
    assert_eq!(seconds(&bench), 300, "data that is not acknowledged");
    assert_eq!(bench.state(&back(ACK, 5001, 1006).frame(), &commit()), REPLY);
    assert_eq!(seconds(&bench), 432_000);
    assert_eq!(bench.state(&out(FIN | ACK, 1006, 5001).frame(), &commit()), EST);
    assert_eq!((tcp_state(&bench), seconds(&bench)), (TcpState::FinWait, 120));
    assert_eq!(bench.state(&back(ACK, 5001, 1007).frame(), &commit()), REPLY);
    assert_eq!((tcp_state(&bench), seconds(&bench)), (TcpState::CloseWait, 60));
    assert_eq!(bench.state(&back(FIN | ACK, 5001, 1007).frame(), &commit()), REPLY);
    assert_eq!((tcp_state(&bench), seconds(&bench)), (TcpState::LastAck, 30));
    assert_eq!(bench.state(&out(ACK, 1007, 5002).frame(), &commit()), EST);
    assert_eq!((tcp_state(&bench), seconds(&bench)), (TcpState::TimeWait, 120));
    let record = record(&bench);
    assert_eq!((record.packets, record.helper), ([5, 4], None));
    bench.now_ms += 121_000;
    assert_eq!(bench.tracker.next_record(0, bench.now_ms), None);
    assert!(bench.tracker.sweep(bench.now_ms, 10_000) && bench.tracker.is_empty());
}

#[test]
fn nothing_is_remembered_without_a_commit() {
    let mut bench = Bench::default();
    let lookup = lasthop_conntrack::CtRequest::default();
    assert_eq!(bench.state(&out(SYN, 1000, 0).frame(), &lookup), NEW);
    assert_eq!(bench.state(&back(SYN | ACK, 5000, 1001).frame(), &lookup), INVALID);
    assert!(bench.tracker.is_empty());
}

#[test]
fn a_segment_that_begins_no_connection_is_invalid() {
    for flags in [0, SYN | ACK, FIN | ACK, RST, RST | ACK, SYN | FIN, SYN | RST, FIN, FIN | RST, 0x20, 8] {
        let mut bench = Bench::default();
        assert_eq!(bench.state(&out(flags, 1000, 7).frame(), &commit()), INVALID, "{flags:#x}");
        assert!(bench.tracker.is_empty());
    }
    // Urgent, push and ECN bits make no difference.
    for flags in [SYN | 0x20, SYN | 8, SYN | 0xc0] {
        assert_eq!(Bench::default().state(&out(flags, 1000, 0).frame(), &commit()), NEW, "{flags:#x}");
    }
}

#[test]
fn segments_outside_of_the_windows_are_invalid_unless_the_policy_is_liberal() {
    // Late ones belong to the connection; the differential test covers their effects.
    let cases = [
        ("far beyond the window", out(ACK, 1001 + 3 * 8192, 5001).with(b"x"), false),
        ("a little beyond the window", out(ACK, 1001 + 8192 + 1, 5001).with(b"x"), true),
        ("at its edge", out(ACK, 1001 + 8192, 5001).with(b"x"), true),
        ("acknowledged long ago", out(ACK, 1001_u32.wrapping_sub(8194), 5001), true),
        ("acknowledges what was not sent", out(ACK, 1001, 5002), false),
        ("acknowledges what is long past", out(ACK, 1001, 5001_u32.wrapping_sub(66_002)), true),
    ];
    for (name, segment, is_right) in cases {
        let mut bench = established();
        let wanted = if is_right { EST } else { INVALID };
        assert_eq!(bench.state(&segment.frame(), &commit()), wanted, "{name}");
        let mut policy = CtPolicy::default();
        policy.tcp.is_liberal = true;
        bench.tracker.set_policy(0, policy);
        assert_eq!(bench.state(&segment.frame(), &commit()), EST, "{name}, liberal");
    }
}

#[test]
fn windows_are_scaled_if_both_offer_it() {
    let scale = |shift| [3, 3, shift];
    for (of_client, of_server, is_right) in [(true, true, true), (true, false, false), (false, true, false)] {
        let mut bench = Bench::default();
        let options = |offers: bool| if offers { scale(7).to_vec() } else { Vec::new() };
        bench.state(&out(SYN, 1000, 0).options(&options(of_client)).frame(), &commit());
        bench.state(&back(SYN | ACK, 5000, 1001).options(&options(of_server)).frame(), &commit());
        bench.state(&out(ACK, 1001, 5001).window(100).frame(), &commit());
        bench.state(&back(ACK, 5001, 1001).window(1000).frame(), &commit());
        // 1000 << 7 is 128,000.
        let far = out(ACK, 1001 + 120_000, 5001).with(b"x");
        assert_eq!(bench.state(&far.frame(), &commit()), if is_right { EST } else { INVALID });
    }
}

#[test]
fn a_selective_acknowledgement_counts_as_one() {
    let permitted = [4, 2];
    let mut sack = vec![5, 10];
    sack.extend(5501_u32.to_be_bytes());
    sack.extend(6001_u32.to_be_bytes());
    let mut bench = Bench::default();
    bench.state(&out(SYN, 1000, 0).options(&permitted).frame(), &commit());
    bench.state(&back(SYN | ACK, 5000, 1001).options(&permitted).frame(), &commit());
    bench.state(&out(ACK, 1001, 5001).frame(), &commit());
    // The first half was lost before it arrived here.
    assert_eq!(bench.state(&out(ACK, 1001, 5001).options(&sack).frame(), &commit()), INVALID);
    assert_eq!(bench.state(&back(ACK, 5501, 1001).with(&[0; 500]).frame(), &commit()), REPLY);
    assert_eq!(bench.state(&out(ACK, 1001, 5001).options(&sack).frame(), &commit()), EST);
}

#[test]
fn late_segments_renew_nothing() {
    let mut bench = established();
    bench.now_ms += 100_000;
    assert_eq!(bench.state(&out(ACK, 1001_u32.wrapping_sub(8194), 5001).frame(), &commit()), EST);
    assert_eq!(bench.state(&out(ACK, 1001, 5001_u32.wrapping_sub(66_002)).frame(), &commit()), EST);
    assert_eq!(record(&bench).left_ms, 431_900_000);
    assert_eq!(bench.state(&out(ACK, 1001, 5001_u32.wrapping_sub(65_999)).frame(), &commit()), EST);
    assert_eq!(record(&bench).left_ms, 432_000_000);
}

#[test]
fn ends_that_do_not_fit_shorten_a_connections_life() {
    let mut bench = established();
    assert_eq!(bench.state(&out(FIN | ACK, 1001, 9999).frame(), &commit()), INVALID);
    assert_eq!(record(&bench).left_ms, 432_000_000);
    assert_eq!(bench.state(&back(FIN | ACK, 5001, 9999).frame(), &commit()), INVALID);
    assert_eq!((tcp_state(&bench), record(&bench).left_ms), (TcpState::Established, 300_000));
}

#[test]
fn a_reset_counts_where_the_peer_is() {
    let mut bench = established();
    assert_eq!(bench.state(&back(RST, 4000, 0).frame(), &commit()), INVALID);
    assert_eq!(tcp_state(&bench), TcpState::Established);
    // In the window, but not exact: the receiver may challenge it.
    assert_eq!(bench.state(&back(RST, 5050, 0).frame(), &commit()), REPLY);
    assert_eq!(tcp_state(&bench), TcpState::Established);
    assert_eq!(bench.state(&back(RST, 5001, 0).frame(), &commit()), REPLY);
    assert_eq!(tcp_state(&bench), TcpState::Close);
    assert_eq!(record(&bench).left_ms, 10_000);
}

#[test]
fn a_refused_connection_is_gone_at_once() {
    let mut bench = Bench::default();
    bench.state(&out(SYN, 1000, 0).frame(), &commit());
    assert_eq!(bench.state(&back(RST | ACK, 0, 1001).frame(), &commit()), REPLY);
    assert_eq!(bench.state(&out(SYN, 9000, 0).frame(), &commit()), NEW);
    assert_eq!((bench.tracker.len(), tcp_state(&bench)), (1, TcpState::SynSent));
}

#[test]
fn a_closed_connection_is_opened_again() {
    let mut bench = established();
    bench.state(&out(FIN | ACK, 1001, 5001).frame(), &commit());
    bench.state(&back(FIN | ACK, 5001, 1002).frame(), &commit());
    bench.state(&out(ACK, 1002, 5002).frame(), &commit());
    assert_eq!(tcp_state(&bench), TcpState::TimeWait);
    let old = record(&bench).id;
    assert_eq!(bench.state(&out(SYN, 70_000, 0).frame(), &commit()), NEW);
    assert_eq!(tcp_state(&bench), TcpState::SynSent);
    assert_ne!(record(&bench).id, old);
    assert_eq!(bench.state(&back(SYN | ACK, 90_000, 70_001).frame(), &commit()), REPLY);
}

#[test]
fn a_syn_in_an_established_connection_is_let_through_and_changes_nothing() {
    let mut bench = established();
    assert_eq!(bench.state(&out(SYN, 99_000, 0).frame(), &commit()), EST);
    assert_eq!(tcp_state(&bench), TcpState::Established);
    assert_eq!(bench.state(&back(SYN, 99_000, 0).frame(), &commit()), INVALID);
    // If the server answers it, both ends know better than the tracker.
    assert_eq!(bench.state(&out(SYN, 99_000, 0).frame(), &commit()), EST);
    assert_eq!(bench.state(&back(SYN | ACK, 7000, 99_001).frame(), &commit()), REPLY);
    assert_eq!(tcp_state(&bench), TcpState::SynRecv);
    assert_eq!(bench.state(&out(ACK, 99_001, 7001).frame(), &commit()), EST);
}

#[test]
fn both_sides_may_open_at_once() {
    let mut bench = Bench::default();
    bench.state(&out(SYN, 1000, 0).frame(), &commit());
    assert_eq!(bench.state(&back(SYN, 5000, 0).frame(), &commit()), REPLY);
    assert_eq!(tcp_state(&bench), TcpState::SynSent2);
    assert_eq!(bench.state(&out(SYN | ACK, 1000, 5001).frame(), &commit()), EST);
    assert_eq!(bench.state(&back(SYN | ACK, 5000, 1001).frame(), &commit()), REPLY);
    assert_eq!(bench.state(&back(ACK, 5001, 1001).frame(), &commit()), REPLY);
    assert_eq!(tcp_state(&bench), TcpState::Established);
}

#[test]
fn a_connection_is_picked_up_in_the_middle_if_the_policy_says_so() {
    let mut bench = Bench::default();
    let data = out(ACK, 1_000_000, 2_000_000).with(b"middle").frame();
    assert_eq!(bench.state(&data, &commit()), NEW);
    assert_eq!((tcp_state(&bench), record(&bench).left_ms), (TcpState::Established, 300_000));
    assert_eq!(bench.state(&back(ACK, 2_000_000, 1_000_006).frame(), &commit()), REPLY);
    assert_eq!(bench.state(&data, &commit()), EST);
    let mut bench = Bench::default();
    let mut policy = CtPolicy::default();
    policy.tcp.is_loose = false;
    bench.tracker.set_policy(0, policy);
    assert_eq!(bench.state(&data, &commit()), INVALID);
}

#[test]
fn a_repeated_segment_shortens_its_connections_life() {
    let mut bench = established();
    for _ in 0..5 {
        assert_eq!(bench.state(&out(ACK, 1001, 5001).with(b"x").frame(), &commit()), EST);
    }
    assert_eq!(record(&bench).left_ms, 300_000);
}

#[test]
fn wrong_checksums_and_lengths_are_invalid() {
    let mut bench = established();
    let mut frame = out(ACK, 1001, 5001).with(b"abc").frame();
    frame[56] ^= 1;
    assert_eq!(bench.state(&frame, &commit()), INVALID);
    let mut frame = out(ACK, 1001, 5001).frame();
    frame[46] = 0xf0;
    assert_eq!(bench.state(&frame, &commit()), INVALID, "options behind the packet's end");
    let short = out(ACK, 1001, 5001).with(b"abc").frame();
    assert_eq!(
        bench.state(&short[..short.len() - 1], &commit()),
        INVALID,
        "the frame is shorter than it says"
    );
}

#[test]
fn a_packet_moves_its_connection_on_once() {
    let mut bench = established();
    let frame = out(FIN | ACK, 1001, 5001).frame();
    let first = bench.track(&frame, &CtMetadata::default(), &commit());
    let again = bench.track(&frame, &first.metadata, &commit());
    assert_eq!((first.metadata, first.connection), (again.metadata, again.connection));
    assert_eq!((tcp_state(&bench), record(&bench).packets), (TcpState::FinWait, [3, 1]));
}
