//! The seed files; not among the targets' own tests (`targets.rs`), since one of those counts open files.

use std::path::Path;

use lasthop_fuzz::TARGETS;

#[test]
fn the_seed_files_are_what_the_targets_say() {
    for target in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
        for (name, bytes) in (target.seeds)() {
            let file = std::fs::read(directory.join(&name)).ok();
            assert!(file == Some(bytes), "{}/{name}: run tools/fuzz --write-seeds", target.name);
        }
    }
}
