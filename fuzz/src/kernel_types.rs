//! BTF: any bytes are refused or read, and each type that is found lies inside them.

use lasthop_bpf::Btf;
use lasthop_bpf::Width;
use lasthop_bpf::btf::TypeKind;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: u32 = 24;
/// Kinds of types, in the place where they stand.
const INTEGER: u32 = 1 << 24;
const POINTER: u32 = 2 << 24;
const STRUCTURE: u32 = 4 << 24;
const TYPEDEF: u32 = 8 << 24;
const FUNCTION: u32 = 12 << 24;
const PROTOTYPE: u32 = 13 << 24;

/// Panics when something does not hold for these bytes.
pub fn run(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes.to_vec()) else { return };
    for kind in
        [TypeKind::Structure, TypeKind::Union, TypeKind::Typedef, TypeKind::Pointer, TypeKind::Prototype]
    {
        for name in ["task", "inner", "pid_t", ""] {
            let Some(found) = btf.find(kind, name) else { continue };
            assert_eq!(btf.kind(found), Some(kind));
            if let Some(resolved) = btf.resolve(found) {
                assert!(!matches!(btf.kind(resolved), Some(TypeKind::Typedef | TypeKind::Qualifier)));
            }
            assert!(btf.parameters(found).count() <= bytes.len());
            let _ = (btf.size_bytes(found), btf.target(found), btf.member(found, "se.delayed"));
        }
    }
    if let Ok(offset) = btf.offset("task", "pid", Width::U32) {
        assert!(offset >= 0);
    }
    if let Ok(tracepoint) = btf.tracepoint("switch") {
        let prev = tracepoint.pointer("prev", "task");
        let state = tracepoint.number("state", Width::U32);
        assert!(prev.is_err() || prev != state, "one argument cannot be both");
    }
}

/// Names with their place.
struct Names(Vec<u8>);

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32; // a few names
        self.0.extend(name.bytes().chain([0]));
        at
    }
}

/// Two structures, one in the other, and a tracepoint.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut names = Names(vec![0]);
    let types = [
        vec![names.add("int"), INTEGER, 4, 32],
        vec![names.add("pid_t"), TYPEDEF, 1],
        vec![names.add("inner"), STRUCTURE | 1, 4, names.add("delayed"), 1, 0],
        vec![names.add("task"), STRUCTURE | 2, 8, names.add("pid"), 2, 0, names.add("se"), 3, 32],
        vec![0, POINTER, 4],
        vec![0, PROTOTYPE | 3, 0, 0, 0, names.add("prev"), 5, names.add("state"), 2],
        vec![names.add("__traceiter_switch"), FUNCTION, 6],
        vec![names.add("btf_trace_switch"), TYPEDEF, 5],
    ];
    let types: Vec<u8> = types.concat().into_iter().flat_map(u32::to_ne_bytes).collect();
    let (types_bytes, names_bytes) = (types.len() as u32, names.0.len() as u32);
    let parts = [HEADER_BYTES, 0, types_bytes, types_bytes, names_bytes];
    let header =
        MAGIC.to_ne_bytes().into_iter().chain([1, 0]).chain(parts.into_iter().flat_map(u32::to_ne_bytes));
    vec![("tracepoint".to_owned(), header.chain(types).chain(names.0).collect())]
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn the_seed_has_all_that_is_looked_for() {
        let btf = Btf::parse(seeds().remove(0).1).unwrap();
        assert_eq!(btf.offset("task", "se.delayed", Width::U32), Ok(4));
        assert_eq!(btf.tracepoint("switch").unwrap().pointer("prev", "task"), Ok(0));
    }
}
