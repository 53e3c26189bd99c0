//! Every seed file of a target, and inputs near them.

use std::fs;
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::FuzzTarget;
use crate::mutation::{Numbers, mutated};

/// Inputs near the seeds for each target, the same in each run: a minute of CPU time for all of them without optimisation.
/// `tools/fuzz` tries new ones.
const MUTATIONS: usize = 3_000;
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Tries them; the line that says how the target did, and whether it did well.
pub fn try_all(target: &FuzzTarget) -> (String, bool) {
    said(target, first_failure(target))
}

/// Tries a file; the line that says how the target did, and whether it did well.
pub fn try_file(target: &FuzzTarget, path: &Path) -> io::Result<(String, bool)> {
    let bytes = fs::read(path)
        .map_err(|error| io::Error::other(format!("cannot read \"{}\": {error}", path.display())))?;
    let failure = fails(target, &bytes).then(|| format!("{}", path.display()));
    Ok(said(target, failure))
}

/// Where the seed files of a target are.
pub fn seed_directory(target: &FuzzTarget) -> PathBuf {
    Path::new(HERE).join("seeds").join(target.name)
}

/// `failure` is the input that failed: a file.
fn said(target: &FuzzTarget, failure: Option<String>) -> (String, bool) {
    let name = target.name;
    match failure {
        None => (format!("ok fuzz-{name}"), true),
        Some(file) => {
            let again = format!("cargo run -p lasthop-fuzz --bin replay {name} {file}");
            (format!("not ok fuzz-{name}: reproduce with {again}"), false)
        }
    }
}

/// The first input that fails, as a file. Where it failed is seen when the file is tried.
fn first_failure(target: &FuzzTarget) -> Option<String> {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = seed_files(target);
    if let Some((path, _)) = seeds.iter().find(|(_, bytes)| fails(target, bytes)) {
        return Some(path.display().to_string());
    }
    let mut numbers = Numbers::new(1);
    for _ in 0..MUTATIONS {
        let mut pick = || seeds.get(numbers.below(seeds.len())).map_or(&[][..], |(_, bytes)| bytes);
        let (bytes, other) = (pick(), pick());
        let bytes = mutated(bytes, other, &mut numbers, target.input_bytes_max);
        if fails(target, &bytes) {
            return Some(kept(target, &bytes));
        }
    }
    None
}

fn fails(target: &FuzzTarget, bytes: &[u8]) -> bool {
    catch_unwind(|| (target.run)(bytes)).is_err()
}

/// Where a failing input can be found; the input itself if it cannot be written.
fn kept(target: &FuzzTarget, bytes: &[u8]) -> String {
    let path = std::env::temp_dir().join(format!("fuzz-{}-{}", target.name, std::process::id()));
    match fs::write(&path, bytes) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("(cannot write {}: {error}; the input is {bytes:?})", path.display()),
    }
}

fn seed_files(target: &FuzzTarget) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(seed_directory(target)).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter_map(|path| Some((path.clone(), fs::read(path).ok()?)))
        .collect();
    files.sort();
    files
}
