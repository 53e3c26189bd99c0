use proptest::prelude::*;

use super::*;
use crate::instruction::Width;

/// Types and names under construction; the kinds are those of `layout.rs`.
#[derive(Default)]
struct Builder {
    types: Vec<u8>,
    names: Vec<u8>,
    count: u32,
}

impl Builder {
    fn new() -> Self {
        Self { names: vec![0], ..Self::default() }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.names.len() as u32;
        self.names.extend(name.bytes().chain([0]));
        at
    }

    fn add(&mut self, name: &str, info: u32, size_or_type: u32, rest: &[u32]) -> TypeId {
        let name_at = self.name(name);
        let words = [name_at, info, size_or_type].into_iter().chain(rest.iter().copied());
        self.types.extend(words.flat_map(u32::to_ne_bytes));
        self.count += 1;
        TypeId(self.count)
    }

    fn integer(&mut self, name: &str, bytes: u32) -> TypeId {
        self.add(name, 1 << 24, bytes, &[bytes * 8])
    }

    /// Members with their types and offsets; bit fields have their width in the upper eight bits.
    fn structure(&mut self, name: &str, bit_fields: bool, members: &[(&str, TypeId, u32)]) -> TypeId {
        let rest: Vec<u32> =
            members.iter().flat_map(|(name, of, offset)| [self.name(name), of.0, *offset]).collect();
        let info = u32::from(bit_fields) << 31 | 4 << 24 | members.len() as u32;
        self.add(name, info, 64, &rest)
    }

    fn bytes(&self) -> Vec<u8> {
        let (types, names) = (self.types.len() as u32, self.names.len() as u32);
        let words = [24, 0, types, types, names].map(u32::to_ne_bytes);
        let header = MAGIC.to_ne_bytes().into_iter().chain([1, 0]).chain(words.into_iter().flatten());
        header.chain(self.types.iter().copied()).chain(self.names.iter().copied()).collect()
    }

    fn btf(&self) -> Btf {
        Btf::parse(self.bytes()).unwrap()
    }
}

const MAGIC: u16 = 0xeb9f;
const TYPEDEF: u32 = 8 << 24;
const CONST: u32 = 10 << 24;

/// `struct task { int pid; struct { u64; union-like member load } ; struct inner se; unsigned a:3, b:5; }`
fn sample() -> Builder {
    let mut builder = Builder::new();
    let int = builder.integer("int", 4);
    let long = builder.integer("long", 8);
    let number = builder.add("pid_t", TYPEDEF, int.0, &[]);
    let fixed = builder.add("", CONST, number.0, &[]);
    let inner = builder.structure("inner", false, &[("weight", long, 64), ("delayed", int, 128)]);
    let unnamed = builder.structure("", false, &[("load", long, 32)]);
    let bits = builder.structure("", true, &[("a", int, 3 << 24), ("b", int, 5 << 24 | 3)]);
    let members = [("pid", fixed, 0), ("", unnamed, 64), ("se", inner, 256), ("", bits, 512)];
    builder.structure("task", false, &members);
    let pointer = builder.add("", 2 << 24, builder.count, &[]);
    let prototype = [0, 0, builder.name("prev"), pointer.0, builder.name("state"), number.0];
    let prototype = builder.add("", 13 << 24 | 3, 0, &prototype);
    builder.add("__traceiter_switch", 12 << 24, prototype.0, &[]);
    builder.add("btf_trace_switch", TYPEDEF, pointer.0, &[]);
    builder
}

fn member(btf: &Btf, path: &str) -> Option<(u64, u8)> {
    let task = btf.find(TypeKind::Structure, "task").unwrap();
    btf.member(task, path).map(|member| (member.offset_bits, member.bit_field))
}

#[test]
fn members_are_found_by_name_also_inside_others() {
    let btf = sample().btf();
    assert_eq!(member(&btf, "pid"), Some((0, 0)));
    assert_eq!(member(&btf, "load"), Some((96, 0)));
    assert_eq!(member(&btf, "se.delayed"), Some((384, 0)));
    assert_eq!((member(&btf, "a"), member(&btf, "b")), (Some((512, 3)), Some((515, 5))));
    for missing in ["delayed", "se.load", "pid.se", "", "se.", "."] {
        assert_eq!(member(&btf, missing).is_some(), missing == "se.", "{missing}");
    }
}

#[test]
fn offsets_are_those_of_whole_members_of_the_expected_size() {
    let btf = sample().btf();
    assert_eq!(btf.offset("task", "pid", Width::U32), Ok(0));
    assert_eq!(btf.offset("task", "se.weight", Width::U64), Ok(40));
    let form = |path: &str, width| btf.offset("task", path, width).unwrap_err().to_string();
    assert!(form("pid", Width::U64).contains("member pid of this kernel's struct task has not the form"));
    assert!(form("b", Width::U32).contains("has not the form"), "a bit field");
    assert!(form("se", Width::U64).contains("has not the form"), "a structure of another size");
    assert_eq!(form("tgid", Width::U32), "this kernel has no member tgid in its struct task");
}

#[test]
fn aliases_are_resolved_and_circles_end() {
    let mut builder = sample();
    let circle = builder.add("endless", TYPEDEF, builder.count + 1, &[]);
    let own = builder.structure("own", false, &[("", TypeId(builder.count + 1), 0)]);
    let btf = builder.btf();
    let number = btf.find(TypeKind::Typedef, "pid_t").unwrap();
    assert_eq!(btf.resolve(number), btf.find(TypeKind::Integer, "int"));
    assert_eq!(btf.size_bytes(number), Some(4));
    assert_eq!((btf.resolve(circle), btf.size_bytes(circle)), (None, None));
    assert_eq!(btf.member(own, "missing"), None);
}

#[test]
fn arguments_of_tracepoints_are_found_by_name_and_type() {
    let btf = sample().btf();
    let tracepoint = btf.tracepoint("switch").unwrap();
    assert_eq!(
        Some(tracepoint.btf_id()),
        btf.find(TypeKind::Typedef, "btf_trace_switch").map(TypeId::number)
    );
    assert_eq!(tracepoint.pointer("prev", "task"), Ok(0));
    assert_eq!(tracepoint.number("state", Width::U32), Ok(8));
    assert!(tracepoint.pointer("prev", "inner").is_err() && tracepoint.number("state", Width::U64).is_err());
    let message = tracepoint.pointer("state", "task").unwrap_err().to_string();
    assert!(message.starts_with("the tracepoint switch of this kernel has no argument state"), "{message}");
    assert_eq!(btf.tracepoint("wakeup").unwrap_err(), TracepointError::Missing("wakeup".to_owned()));
    assert_eq!(btf.parameters(TypeId(1)).count(), 0, "an integer has none");
    assert_eq!(btf.parameters(TypeId(0)).count(), 0, "void has none");
}

#[test]
fn other_bytes_are_refused_by_name() {
    let parse = |bytes: &[u8]| Btf::parse(bytes.to_vec()).map(drop).unwrap_err();
    let good = sample().bytes();
    assert_eq!(parse(&[]), BtfError::Truncated);
    assert_eq!(parse(&[1; 64]), BtfError::Magic);
    assert_eq!(parse(&good[..good.len() - 1]), BtfError::Truncated);
    let mut later = Builder::new();
    later.add("", 31 << 24, 0, &[]);
    assert_eq!(parse(&later.bytes()), BtfError::UnknownKind(31));
    let mut short = Builder::new();
    short.add("", 4 << 24 | 7, 0, &[]);
    assert_eq!(parse(&short.bytes()), BtfError::Truncated, "seven members, and none is there");
}

/// Needs a kernel with BTF, as nearly all have.
#[test]
#[ignore = "needs the kernel's BTF"]
fn the_running_kernel_is_read() {
    let btf = Btf::kernel().unwrap();
    assert!(btf.offset("task_struct", "pid", Width::U32).unwrap() > 0);
    let tracepoint = btf.tracepoint("sched_switch").unwrap();
    assert!(
        tracepoint.pointer("prev", "task_struct").unwrap()
            < tracepoint.pointer("next", "task_struct").unwrap()
    );
    assert!(
        tracepoint.number("preempt", Width::U8).is_ok() && tracepoint.number("prev", Width::U64).is_err()
    );
    assert!(
        tracepoint.pointer("previous", "task_struct").is_err() && tracepoint.pointer("prev", "task").is_err()
    );
}

/// Calls all methods of a BTF.
fn ask(bytes: Vec<u8>) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    for id in (0..btf.types_at.len() as u32 + 2).map(TypeId) {
        let _ = (btf.resolve(id), btf.size_bytes(id), btf.target(id), btf.kind(id));
        let _ = (btf.member(id, "load"), btf.member(id, "se.delayed"), btf.parameters(id).count());
    }
    let _ = btf.offset("task", "pid", Width::U32);
    let _ = btf.tracepoint("switch").map(|tracepoint| tracepoint.pointer("prev", "task"));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        ask(bytes);
    }

    #[test]
    fn changed_bytes_are_refused_or_read(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in any::<prop::sample::Index>()) {
        let mut bytes = sample().bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        ask(bytes[..bytes.len() - cut.index(8)].to_vec());
    }
}
