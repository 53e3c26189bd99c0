//! The filters agree with the lists, for every possible call, and docs/design/sandbox.md has the actual lists.

use std::collections::BTreeSet;

use super::interpreter::{Answer, Data, run, run_on};
use crate::sandbox::ProcessRole;
use crate::sandbox::calls::{Call, Refusal, Value, common, roles};
use crate::sandbox::seccomp::{Own, programs, spent};

const OWN: Own = Own { process: 4711, names: Some(7) };
/// More than Linux has today.
const NUMBERS: i64 = 1024;

/// The answer of all filters together: the strictest one.
fn answer_to(role: ProcessRole, own: Own, number: i64, arguments: [u64; 6]) -> Answer {
    let [failing, passing] = programs(role, own).expect("filters");
    let data = Data { number, arguments };
    match run(&passing, &data) {
        Answer::Allow => run(&failing, &data),
        strict => strict,
    }
}

/// Arguments with which a call is allowed.
fn fitting(call: &Call) -> Vec<[u64; 6]> {
    let fill = |terms: &&[crate::sandbox::calls::Term]| {
        let mut arguments = [0; 6];
        for term in *terms {
            arguments[usize::from(term.argument)] = match term.is {
                Value::Int(value) => value.into(),
                Value::NotInt(value) => u64::from(value) + 1,
                Value::Long(value) | Value::Bits { value, .. } => value,
                Value::OwnProcess => OWN.process.into(),
                Value::DescriptorNames => OWN.names.expect("some").into(),
            };
        }
        arguments
    };
    if call.terms.is_empty() { vec![[u64::MAX; 6]] } else { call.terms.iter().map(fill).collect() }
}

fn refused(role: ProcessRole) -> impl Iterator<Item = &'static Call> {
    role.refusals().iter().map(|Refusal(call)| call)
}

#[test]
fn what_is_listed_passes_and_nothing_else() {
    for role in ProcessRole::ALL {
        let listed: BTreeSet<i64> = role.calls().chain(refused(role)).map(|call| call.number).collect();
        for number in (0..NUMBERS).filter(|number| !listed.contains(number)) {
            assert_eq!(answer_to(role, OWN, number, [0; 6]), Answer::Trap, "{number}");
        }
        let expect = |call: &Call, answer| {
            for arguments in fitting(call) {
                assert_eq!(
                    answer_to(role, OWN, call.number, arguments),
                    answer,
                    "{} {arguments:?}",
                    call.name
                );
            }
        };
        role.calls().for_each(|call| expect(call, Answer::Allow));
        refused(role).for_each(|call| expect(call, Answer::Fail(libc::ENOSYS as u32)));
    }
}

#[test]
fn arguments_that_are_not_listed_do_not_pass() {
    let answer_to = |number, arguments| answer_to(ProcessRole::Switch, OWN, number, arguments);
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    assert_eq!(answer_to(libc::SYS_mmap, [0, 1, executable, 0, 0, 0]), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_fcntl, [0, libc::F_SETOWN as u64, 0, 0, 0, 0]), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_tgkill, [4711, 1, libc::SIGKILL as u64, 0, 0, 0]), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_tgkill, [4712, 1, libc::SIGURG as u64, 0, 0, 0]), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_readlinkat, [8, 0, 0, 0, 0, 0]), Answer::Trap);
    assert_eq!(
        answer_to(libc::SYS_sendto, [0, 0, 0, 0, 1 << 40, 0]),
        Answer::Trap,
        "the upper half of a pointer"
    );
    assert_eq!(answer_to(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_futex, [0, libc::FUTEX_LOCK_PI as u64, 0, 0, 0, 0]), Answer::Trap);
    // A value that is an int for the kernel is compared as one: the upper half is ignored.
    let padded = 1 << 32 | libc::F_GETFL as u64;
    assert_eq!(answer_to(libc::SYS_fcntl, [0, padded, 0, 0, 0, 0]), Answer::Allow);
}

#[test]
fn without_a_directory_of_descriptors_nothing_is_looked_up() {
    let own = Own { names: None, ..OWN };
    for number in [0, 7, u64::from(u32::MAX)] {
        assert_eq!(
            answer_to(ProcessRole::Switch, own, libc::SYS_readlinkat, [number, 0, 0, 0, 0, 0]),
            Answer::Trap
        );
    }
}

#[test]
fn calls_of_another_machine_s_kind_end_the_process() {
    let [_, passing] = programs(ProcessRole::Switch, OWN).expect("filters");
    let data = || Data { number: libc::SYS_write, arguments: [0; 6] };
    /// AUDIT_ARCH_I386: the other table of the same processor.
    const I386: u32 = 0x4000_0003;
    assert_eq!(run_on(&passing, &data(), I386), Answer::End);
    // x32 has numbers of its own.
    let x32 = Data { number: 0x4000_0000 | libc::SYS_write, arguments: [0; 6] };
    assert_eq!(run(&passing, &x32), Answer::Trap);
}

#[test]
fn the_driver_process_sets_few_options_and_binds_xdp_sockets_alone() {
    let answer_to = |number, arguments| answer_to(ProcessRole::Driver, OWN, number, arguments);
    let option = |level: i32, name: i32| [5, level as u64, name as u64, 0, 4, 0];
    assert_eq!(answer_to(libc::SYS_setsockopt, option(libc::SOL_SOCKET, libc::SO_RCVTIMEO)), Answer::Allow);
    let fragments = option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    assert_eq!(answer_to(libc::SYS_setsockopt, fragments), Answer::Allow);
    assert_eq!(answer_to(libc::SYS_setsockopt, option(libc::IPPROTO_IP, libc::IP_OPTIONS)), Answer::Trap);
    assert_eq!(answer_to(libc::SYS_setsockopt, option(libc::SOL_PACKET, libc::PACKET_RX_RING)), Answer::Trap);
    assert_eq!(
        answer_to(libc::SYS_setsockopt, option(libc::SOL_SOCKET, libc::SO_BINDTODEVICE)),
        Answer::Trap
    );
    let bind = |len_bytes: usize| answer_to(libc::SYS_bind, [5, 4096, len_bytes as u64, 0, 0, 0]);
    assert_eq!(bind(size_of::<libc::sockaddr_xdp>()), Answer::Allow);
    assert_eq!(bind(size_of::<libc::sockaddr_ll>()), Answer::Trap);
    /// TUNSETIFF (linux/if_tun.h), SIOCSIFFLAGS (linux/sockios.h): their type differs between C libraries.
    const REQUESTS: [u64; 2] = [0x4004_54ca, 0x8914];
    for request in REQUESTS {
        assert_eq!(answer_to(libc::SYS_ioctl, [5, request, 0, 0, 0, 0]), Answer::Trap);
    }
    assert_eq!(answer_to(libc::SYS_readlinkat, [7, 0, 0, 0, 0, 0]), Answer::Trap);
}

#[test]
fn each_entry_says_why_and_what_it_is() {
    for role in ProcessRole::ALL {
        for call in role.calls().chain(refused(role)) {
            assert!(!call.why.is_empty(), "{}", call.name);
            assert_eq!(crate::sandbox::name_of(call.number), Some(call.name));
            assert!(call.terms.iter().all(|terms| !terms.is_empty()), "{}", call.name);
        }
    }
}

#[test]
fn what_is_needed_once_is_taken_away_and_nothing_else() {
    let once = |call: &&Call| call.is_once;
    for role in ProcessRole::ALL {
        let spent = spent(role, OWN).expect("a filter");
        let answer_to = |call: &Call| {
            let data = |arguments| Data { number: call.number, arguments };
            fitting(call).into_iter().map(|arguments| run(&spent, &data(arguments))).collect::<Vec<_>>()
        };
        role.calls()
            .filter(once)
            .for_each(|call| assert!(answer_to(call).iter().all(|one| *one == Answer::Trap)));
        let others = role.calls().filter(|call| !call.is_once);
        others.for_each(|call| {
            assert!(answer_to(call).iter().all(|one| *one == Answer::Allow), "{}", call.name)
        });
    }
    let names: Vec<&str> = ProcessRole::Switch.calls().filter(once).map(|call| call.name).collect();
    assert_eq!(names, ["clone", "seccomp"]);
}

const DOCUMENT: &str = include_str!("../../../../../../docs/design/sandbox.md");

/// A row of the document: the call, whether arguments are restricted, the reason, whether tests use it.
fn row(call: &Call) -> String {
    let terms = if call.terms.is_empty() { "" } else { " (some)" };
    let kept = if call.kept { "kept" } else { "" };
    format!("| `{}`{terms} | {} | {kept} |", call.name, call.why)
}

fn rows<'a>(calls: impl Iterator<Item = &'a Call>) -> String {
    calls.map(|call| row(call) + "\n").collect()
}

/// The rows of the table below a heading.
fn table(heading: &str) -> String {
    let (_, behind) = DOCUMENT.split_once(&format!("\n{heading}\n")).expect("the heading");
    let lines = behind.lines().take_while(|line| !line.starts_with('#'));
    lines.filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_document_has_each_call_with_its_reason() {
    for (heading, rows) in [
        ("### All processes", rows(common::CALLS.iter())),
        ("### The switch process", rows(roles::SWITCH_CALLS.iter())),
        ("### The driver process", rows(roles::DRIVER_CALLS.iter())),
        ("### The controller process", rows(roles::CONTROLLER_CALLS.iter())),
        ("### Refused", rows(common::REFUSALS.iter().map(|Refusal(call)| call))),
    ] {
        assert!(table(heading) == rows, "below {heading} docs/design/sandbox.md should have:\n{rows}");
    }
}
