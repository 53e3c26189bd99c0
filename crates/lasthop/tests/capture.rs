//! `lasthop capture` on the built binary: frames that pass, and those that are dropped, are in the file, as read by
//! other programs.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lasthop_rig::guests::{ONE, TWO, guest, receive, send};
use lasthop_rig::{Switch, eventually, signal};
use lasthop_wire::Offload;
use pcap_parser::{Block, EnhancedPacketBlock, PcapNGOption, parse_pcapng};
use rustix::process::Signal;

/// A frame of a type that no protocol uses (IEEE 802 local experimental).
fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..len).map(|at| at as u8));
    frame
}

/// A running `lasthop capture`, whose standard error goes to a file.
struct Capture {
    child: Child,
    log: std::path::PathBuf,
}

impl Capture {
    /// Starts a capture; it has every frame that arrives after this returns.
    fn start(switch: &Switch, words: &[&str], out: Stdio) -> Self {
        let log = switch.base.path().join(format!("capture{}", words.join("-").replace('/', "_")));
        let err = std::fs::File::create(&log).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.arg("--dir").arg(switch.dir()).arg("capture").args(words);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("the binary runs");
        let capture = Self { child, log };
        eventually("the capture", || capture.log().contains("Ctrl-C ends it").then_some(()));
        capture
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits for its end; returns its output.
    fn end(mut self) -> String {
        let status = eventually("the end", || self.child.try_wait().expect("our child"));
        assert!(status.success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn value(options: &[PcapNGOption<'_>], code: u16) -> Option<Vec<u8>> {
    let found = options.iter().find(|option| option.code.0 == code)?;
    Some(found.value[..usize::from(found.len)].to_vec())
}

/// A packet of a file: interface, direction (1 in, 2 out), comment, length and bytes.
#[derive(Debug, PartialEq)]
struct Packet {
    interface: String,
    direction: u8,
    comment: String,
    len: u32,
    bytes: Vec<u8>,
}

/// The packets of a file, in order, and the number of lost packets in the statistics at its end.
fn read(file: &[u8]) -> (Vec<Packet>, Vec<u64>) {
    let (rest, capture) = parse_pcapng(file).expect("pcapng");
    assert_eq!((rest.len(), capture.sections.len()), (0, 1));
    let (mut names, mut packets, mut lost, mut last) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for block in &capture.sections[0].blocks {
        match block {
            Block::InterfaceDescription(interface) => {
                names.push(String::from_utf8(value(&interface.options, 2).expect("a name")).expect("text"));
            }
            Block::EnhancedPacket(packet) => {
                let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                assert!(time >= last && time > 1_600_000_000_000_000_000, "{time}, in order of time");
                last = time;
                packets.push(described(packet, &names));
            }
            Block::InterfaceStatistics(end) => {
                let value = value(&end.options, 5).expect("isb_ifdrop");
                lost.push(u64::from_le_bytes(value.try_into().expect("eight bytes")));
            }
            _ => {}
        }
    }
    assert_eq!(lost.len(), names.len(), "each interface has its statistics");
    (packets, lost)
}

fn described(packet: &EnhancedPacketBlock<'_>, names: &[String]) -> Packet {
    Packet {
        interface: names[packet.if_id as usize].clone(),
        direction: value(&packet.options, 2).expect("epb_flags")[0],
        comment: String::from_utf8(value(&packet.options, 1).unwrap_or_default()).expect("text"),
        len: packet.origlen,
        bytes: packet.data[..packet.caplen as usize].to_vec(),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_file_has_what_came_in_went_out_and_was_dropped() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two,mac=02:00:00:00:00:02"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let file = switch.base.path().join("all.pcapng");
    let capture = Capture::start(&switch, &["--all", "-w", text(&file), "-c", "4"], Stdio::null());
    let hello = frame(TWO, ONE, 1400);
    send(&mut one, &hello);
    assert_eq!(receive(&mut two), hello);
    let spoofed = frame(ONE, [0x02, 0, 0, 0, 0, 9], 60);
    send(&mut two, &spoofed);
    let said = capture.end();
    assert!(said.contains("capturing one, two;") && said.contains("4 packets captured, 0 lost"), "{said}");
    let (packets, lost) = read(&std::fs::read(&file).expect("the file"));
    let packet = |interface: &str, direction, comment: &str, bytes: &[u8]| Packet {
        interface: interface.to_owned(),
        direction,
        comment: comment.to_owned(),
        len: bytes.len() as u32,
        bytes: bytes.to_vec(),
    };
    let reason = "dropped: source_spoofed - The source address is not the one configured for the port.";
    let expected = [
        packet("one", 1, "", &hello),
        packet("two", 2, "", &hello),
        packet("two", 1, "", &spoofed),
        packet("two", 1, reason, &spoofed),
    ];
    assert_eq!(packets, expected);
    assert_eq!(lost, [0, 0]);
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn drops_alone_cut_short_until_a_signal_comes() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let mut one = guest(&switch, "one", ONE);
    let file = switch.base.path().join("drops.pcapng");
    let words = ["one", "--direction", "drop", "-s", "20", "-w", text(&file)];
    let capture = Capture::start(&switch, &words, Stdio::null());
    send(&mut one, &frame(TWO, ONE, 1000));
    eventually("the packet", || std::fs::read(&file).is_ok_and(|bytes| bytes.len() > 200).then_some(()));
    signal(capture.child.id(), Signal::INT);
    assert!(capture.end().contains("1 packets captured, 0 lost"));
    let (packets, _) = read(&std::fs::read(&file).expect("the file"));
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0].len, &packets[0].bytes[..]), (1000, &frame(TWO, ONE, 1000)[..20]));
    assert!(packets[0].comment.starts_with("dropped: port_down"), "{}", packets[0].comment);
}

#[test]
fn the_output_is_live_and_its_end_ends_the_capture() {
    let switch = Switch::start(&["--vnic", "one"]);
    let mut one = guest(&switch, "one", ONE);
    let mut capture = Capture::start(&switch, &["one", "-w", "-", "-Q", "in"], Stdio::piped());
    let mut out = capture.child.stdout.take().expect("a pipe");
    send(&mut one, &frame(TWO, ONE, 60));
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while !seen.windows(60).any(|bytes| bytes == frame(TWO, ONE, 60)) {
        let count = out.read(&mut piece).expect("read");
        assert!(count > 0, "the capture ended: {}", capture.log());
        seen.extend_from_slice(&piece[..count]);
    }
    assert_eq!(capture.child.try_wait().expect("our child"), None, "it goes on");
    drop(out); // and no packet arrives
    assert!(capture.end().contains("1 packets captured"));
    eventually("its tap is gone", || (captures(&switch) == 0).then_some(()));
}

/// Threads of captures in the switch process.
fn captures(switch: &Switch) -> usize {
    let pid = switch.switch_pid().expect("a switch process");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    let name =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|name| name.trim_end() == "capture").count()
}

#[test]
fn a_client_that_is_killed_and_a_vnic_that_is_deleted_end_captures() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let capture = Capture::start(&switch, &["one"], Stdio::piped());
    // A new thread gives itself its name.
    eventually("the capture", || (captures(&switch) == 1).then_some(()));
    drop(capture);
    eventually("the end of a capture whose client is gone", || (captures(&switch) == 0).then_some(()));
    let file = switch.base.path().join("two.pcapng");
    let capture = Capture::start(&switch, &["two", "-w", text(&file)], Stdio::null());
    switch.ask(&["vnic", "del", "two"]).ok();
    let said = capture.end();
    assert!(said.contains("its ports were deleted") && said.contains("0 packets captured"), "{said}");
    assert_eq!(read(&std::fs::read(&file).expect("the file")).1, [0]);
}

#[test]
fn captures_survive_neither_their_time_nor_the_switch() {
    let mut switch = Switch::start(&["--vnic", "one"]);
    let file = switch.base.path().join("short.pcapng");
    let capture = Capture::start(&switch, &["one", "--duration", "1", "-w", text(&file)], Stdio::null());
    assert!(!capture.end().contains("deleted"));
    let capture = Capture::start(&switch, &["one", "-w", text(&file)], Stdio::null());
    assert!(switch.end().success());
    assert!(capture.end().contains("the switch has ended"));
    read(&std::fs::read(&file).expect("the file"));
}

#[test]
fn a_capture_may_be_asked_for_until_the_end_of_time() {
    let switch = Switch::start(&["--vnic", "one"]);
    let process = switch.switch_pid();
    let file = switch.base.path().join("long.pcapng");
    let forever = u64::MAX.to_string();
    let capture = Capture::start(&switch, &["one", "--duration", &forever, "-w", text(&file)], Stdio::null());
    eventually("the capture", || (captures(&switch) == 1).then_some(()));
    signal(capture.child.id(), Signal::INT);
    assert!(capture.end().contains("0 packets captured"));
    assert_eq!(switch.switch_pid(), process, "the switch process went on");
}

#[test]
fn a_capture_whose_reader_stands_still_can_be_ended() {
    let switch = Switch::start(&["--vnic", "one"]);
    let mut one = guest(&switch, "one", ONE);
    let mut capture = Capture::start(&switch, &["one"], Stdio::piped());
    let _unread = capture.child.stdout.take();
    // More than fits into a pipe and the client's connection.
    for _ in 0..800 {
        eventually("room for a frame", || {
            one.reclaim(0).expect("a sound ring");
            let sent = one.send(0, &frame([0xff; 6], ONE, 1514), Offload::default()).expect("sent");
            one.flush(0).expect("flushed");
            sent.then_some(())
        });
    }
    signal(capture.child.id(), Signal::TERM);
    assert!(capture.end().contains("packets captured"));
}

#[test]
fn a_capture_into_a_pipe_that_nobody_opens_can_be_ended() {
    let switch = Switch::start(&["--vnic", "one"]);
    let pipe = switch.base.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.arg("--dir").arg(switch.dir()).args(["capture", "one", "-w", text(&pipe)]);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let mut capture = Capture { child, log: pipe }; // ended if this fails
    eventually("the capture", || (captures(&switch) == 1).then_some(()));
    // Not SIGINT, which background jobs of shells ignore.
    signal(capture.child.id(), Signal::TERM);
    eventually("the end", || capture.child.try_wait().expect("our child"));
}

#[test]
fn there_are_only_so_many_captures_and_mistakes_are_named() {
    let switch = Switch::start(&["--vnic", "one"]);
    let file = |number: usize| switch.base.path().join(format!("{number}.pcapng"));
    let start = |number| Capture::start(&switch, &["one", "-w", text(&file(number))], Stdio::null());
    let captures: Vec<Capture> = (0..4).map(start).collect();
    let refused = switch.ask(&["capture", "one"]).refused();
    assert!(refused.contains("4 captures are running already; end one first"), "{refused}");
    drop(captures);
    eventually("room", || {
        (switch.ask(&["capture", "one", "--duration", "1", "-w", "/dev/null"]).code == Some(0)).then_some(())
    });
    let many = switch.ask(&["capture", "o*", "one", "--duration", "1", "-w", "/dev/null"]);
    assert!(many.code == Some(0) && many.err.contains("capturing one;"), "{}", many.err);
    let refused = switch.ask(&["capture", "x*"]).refused();
    assert!(refused.contains("no name is like \"x*\""), "{refused}");
    let refused = switch.ask(&["capture", "on"]).refused();
    assert!(refused.contains("there is no port \"on\"") && refused.contains("\"one\""), "{refused}");
    let refused = switch.ask(&["capture", "one", "-c", "0"]).refused();
    assert!(refused.contains("the count must be 1 or more"), "{refused}");
    let refused = switch.ask(&["capture", "one", "-w", "/nowhere/x"]).refused();
    assert!(refused.contains("cannot create /nowhere/x"), "{refused}");
}

#[test]
fn tcpdump_reads_it_live() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        // Not through libtest, which captures a test's output.
        let _ = std::io::stderr().write_all(b"skip: there is no tcpdump here; tools/deps test installs it\n");
        return;
    }
    let switch = Switch::start(&["--vnic", "one"]);
    let mut one = guest(&switch, "one", ONE);
    let mut capture = Capture::start(&switch, &["one", "-Q", "in"], Stdio::piped());
    let out = capture.child.stdout.take().expect("a pipe");
    let mut tcpdump = Command::new("tcpdump")
        .args(["-r", "-", "-nelc", "2"])
        .stdin(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tcpdump runs");
    send(&mut one, &frame(TWO, ONE, 60));
    send(&mut one, &frame([0xff; 6], ONE, 1514));
    let mut said = String::new();
    tcpdump.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(tcpdump.wait().expect("our child").success());
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with('\t')).collect(); // no dumps
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype")
            && lines[0].contains("length 60")
    );
    assert!(
        lines[1].contains("02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff") && lines[1].contains("length 1514"),
        "{said}"
    );
    capture.end();
}
