//! Programs and maps in the running kernel. This needs CAP_BPF and CAP_PERFMON.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use lasthop_bpf::{
    Assembler, Btf, Condition, EventQueue, Licence, Map, Operation, Program, ProgramKind, ReadWords,
    Register, Width, WritableWords, helper,
};

use Register::{R0, R1, R2, R3, R4, R10};

/// The longest wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn load(kind: ProgramKind, code: Assembler<'_>) -> Program {
    Program::load(kind, Licence::MitOrGpl, "lasthop_test", &code.finish().unwrap()).unwrap()
}

#[test]
#[ignore = "needs root"]
fn a_program_that_is_run_writes_a_map_that_is_read_here() {
    let map = Map::shared_read_only("lasthop_test", 16).unwrap();
    let mut code = Assembler::new();
    code.load(Width::U64, R2, R1, 0).set_map_value(R3, &map).store(Width::U64, R3, 8, R2);
    code.compute(Operation::Copy, R0, 7).exit();
    let program = load(ProgramKind::RawTracepoint, code);

    let words = ReadWords::map(map.as_fd(), 2).unwrap();
    assert_eq!(program.run(None, &[0xfeed]).unwrap(), 7);
    assert_eq!(program.run(Some(0), &[0xfeed]).unwrap(), 7);
    assert_eq!((words.load(0), words.load(1), words.load(2)), (Some(0), Some(0xfeed), None));
}

#[test]
#[ignore = "needs root"]
fn a_read_only_map_is_changed_by_programs_alone() {
    let map = Map::shared_read_only("lasthop_test", 8).unwrap();
    assert_eq!(map.set(0, &[1; 8]).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(WritableWords::map(map.as_fd(), 1).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
#[ignore = "needs root"]
fn values_have_the_size_of_their_map() {
    let map = Map::hash("lasthop_test", 8, 2).unwrap();
    map.set(5, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(map.get(5).unwrap(), Some(7_u64.to_ne_bytes().to_vec()));
    assert_eq!(map.set(5, &[0; 4]).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(map.get(6).unwrap(), None);
    assert!(map.remove(5).unwrap());
    assert!(!map.remove(5).unwrap());

    let array = Map::shared("lasthop_test", 16).unwrap();
    let words = WritableWords::map(array.as_fd(), 2).unwrap();
    assert!(words.store(1, 9) && !words.store(2, 9));
    assert_eq!(array.get(0).unwrap().unwrap()[8..], 9_u64.to_ne_bytes());
    assert!(ReadWords::map(array.as_fd(), 10_000).is_err(), "behind its end");
}

#[test]
#[ignore = "needs root"]
fn a_typed_tracepoint_is_attached_until_its_link_goes() {
    let btf = Btf::kernel().unwrap();
    let tracepoint = btf.tracepoint("sched_switch").unwrap();
    let next = tracepoint.pointer("next", "task_struct").unwrap();
    let pid = btf.offset("task_struct", "pid", Width::U32).unwrap();
    let counter = Map::shared_read_only("lasthop_test", 8).unwrap();
    let mut code = Assembler::new();
    let out = code.label();
    // Counts context switches to tasks other than the idle one.
    code.load(Width::U64, R2, R1, next).load(Width::U32, R2, R2, pid);
    code.jump_if(Condition::Equal, R2, 0, out);
    code.set_map_value(R3, &counter).compute(Operation::Copy, R1, 1).atomic_add(R3, 0, R1);
    code.place(out).set(R0, 0).exit();
    let program = load(ProgramKind::Tracing { btf_id: tracepoint.btf_id() }, code);

    let words = ReadWords::map(counter.as_fd(), 1).unwrap();
    let link = program.attach().unwrap();
    while words.load(0) == Some(0) {
        std::thread::yield_now();
    }
    drop(link);
    // Programs that run on another CPU at this moment still count. Each sleep is a switch that would be counted.
    let until = Instant::now() + PATIENCE;
    loop {
        let before = words.load(0);
        std::thread::sleep(Duration::from_millis(20));
        if words.load(0) == before {
            break;
        }
        assert!(Instant::now() < until, "it counts after its end");
    }
}

#[test]
#[ignore = "needs root"]
fn the_verifiers_message_is_reported() {
    let mut code = Assembler::new();
    code.exit();
    let code = code.finish().unwrap();
    let error =
        Program::load(ProgramKind::Classifier, Licence::Apache, "wrong", &code).unwrap_err().to_string();
    assert!(error.contains("program wrong") && error.contains("R0 !read_ok"), "{error}");
    let mut stack = Assembler::new();
    stack.load(Width::U64, R0, R10, 0).call(helper::KTIME_NS).exit();
    let stack = stack.finish().unwrap();
    let error = Program::load(ProgramKind::RawTracepoint, Licence::Apache, "stack", &stack).unwrap_err();
    assert!(error.to_string().contains("invalid read from stack"), "{error}");
}

#[test]
#[ignore = "needs root"]
fn events_reach_the_queue_that_a_program_selects_by_number() {
    const PAGE: u32 = 4096;
    let maps = [(); 2].map(|()| Map::ring_buffer("lasthop_test", PAGE).unwrap());
    let outer = Map::array_of_maps("lasthop_test", &maps).unwrap();
    let queues = maps.each_ref().map(|map| EventQueue::map(map.as_fd()).unwrap());
    let mut code = Assembler::new();
    let out = code.label();
    code.load(Width::U64, R2, R1, 0).store(Width::U64, R10, -8, R2);
    code.set_map(R1, &outer).copy(R2, R10).compute(Operation::Add, R2, -8).call(helper::MAP_LOOKUP);
    code.jump_if(Condition::Equal, R0, 0, out).copy(R1, R0);
    code.copy(R2, R10).compute(Operation::Add, R2, -8).set(R3, 8).set(R4, helper::FORCE_WAKE_UP);
    code.call(helper::RING_BUFFER_OUTPUT).place(out).set(R0, 0).exit();
    let program = load(ProgramKind::RawTracepoint, code);

    assert!(!queues[0].clear() && !queues[1].clear(), "none yet");
    program.run(None, &[1]).unwrap();
    program.run(None, &[2]).unwrap();
    assert!(!queues[0].clear() && queues[1].clear() && !queues[1].clear());
    // More events than fit, and then there is room again.
    (0..PAGE).for_each(|_| _ = program.run(None, &[0]).unwrap());
    assert!(queues[0].clear() && !queues[0].clear());
    program.run(None, &[0]).unwrap();
    assert!(queues[0].clear());
    assert!(Map::array_of_maps("lasthop_test", &[]).is_err());
}
