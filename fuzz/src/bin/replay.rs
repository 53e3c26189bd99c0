//! Runs targets on a stable compiler: `replay` tries every seed and inputs near them, `replay TARGET FILE...` tries files,
//! `replay --write-seeds` writes what the targets' `seeds` give to the seed directory.
//!
//! Prints `ok fuzz-TARGET` or `not ok fuzz-TARGET: how to try again`, and fails when something did not hold.

use std::fs;
use std::io::{self, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lasthop_fuzz::mutation::{Numbers, mutated};
use lasthop_fuzz::{TARGETS, Target};

/// Inputs near the seeds for each target: a few seconds for all of them.
const MUTATIONS: usize = 10_000;
const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(TARGETS.iter().filter(|target| !report(target, smoke(target).as_deref())).count()),
        ["--write-seeds"] => TARGETS.iter().try_for_each(write_seeds).map(|()| 0),
        [name, ref files @ ..] => replay(name, files),
    };
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    // A reader that closed the output needs no message.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Says how a target did; whether it did well.
fn report(target: &Target, failed: Option<&Path>) -> bool {
    let name = target.name;
    match failed {
        None => say(&format!("ok fuzz-{name}")),
        Some(path) => say(&format!(
            "not ok fuzz-{name}: reproduce with cargo run --manifest-path fuzz/Cargo.toml --bin replay {name} {}",
            path.display()
        )),
    }
    failed.is_none()
}

/// How many of the files fail.
fn replay(name: &str, files: &[&str]) -> io::Result<usize> {
    let names = || TARGETS.map(|target| target.name).join(", ");
    let unknown = || io::Error::other(format!("there is no target \"{name}\" (there are {})", names()));
    let target = TARGETS.iter().find(|target| target.name == name).ok_or_else(unknown)?;
    let mut failed = 0;
    for file in files {
        let bytes =
            fs::read(file).map_err(|error| io::Error::other(format!("cannot read \"{file}\": {error}")))?;
        failed += usize::from(!report(target, fails(target, &bytes).then_some(Path::new(file))));
    }
    Ok(failed)
}

/// The first input that fails, as a file. Where it failed is seen when the file is tried.
fn smoke(target: &Target) -> Option<PathBuf> {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = seed_files(target);
    if let Some((path, _)) = seeds.iter().find(|(_, bytes)| fails(target, bytes)) {
        return Some(path.clone());
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

fn fails(target: &Target, bytes: &[u8]) -> bool {
    catch_unwind(|| (target.run)(bytes)).is_err()
}

/// Where a failing input can be found.
fn kept(target: &Target, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fuzz-{}-{}", target.name, std::process::id()));
    if let Err(error) = fs::write(&path, bytes) {
        say(&format!("# cannot write {}: {error}; the input is {bytes:?}", path.display()));
    }
    path
}

fn seed_directory(target: &Target) -> PathBuf {
    Path::new(HERE).join("seeds").join(target.name)
}

fn seed_files(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(seed_directory(target)).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter_map(|path| Some((path.clone(), fs::read(path).ok()?)))
        .collect();
    files.sort();
    files
}

fn write_seeds(target: &Target) -> io::Result<()> {
    let directory = seed_directory(target);
    fs::create_dir_all(&directory)?;
    (target.seeds)().into_iter().try_for_each(|(name, bytes)| fs::write(directory.join(name), bytes))
}
