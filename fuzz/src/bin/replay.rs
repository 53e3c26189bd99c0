//! Runs targets on a stable compiler: `replay` tries every seed and inputs near them, `replay TARGET FILE...` tries files,
//! `replay --write-seeds` writes the targets' seeds to the seed directory.
//!
//! Prints `ok fuzz-TARGET` or `not ok fuzz-TARGET: how to try again`, and fails when something did not hold.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use lasthop_fuzz::neighbours::{seed_directory, try_all, try_file};
use lasthop_fuzz::{FuzzTarget, TARGETS};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(TARGETS.iter().all(|target| report(try_all(target)))),
        ["--write-seeds"] => TARGETS.iter().try_for_each(write_seeds).map(|()| true),
        [name, ref files @ ..] => replay(name, files),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    // A reader that closed the output needs no message.
    let _ = writeln!(io::stdout(), "{line}");
}

fn report((line, is_well): (String, bool)) -> bool {
    say(&line);
    is_well
}

/// Whether no file fails.
fn replay(name: &str, files: &[&str]) -> io::Result<bool> {
    let names = || TARGETS.map(|target| target.name).join(", ");
    let unknown = || io::Error::other(format!("there is no target \"{name}\" (there are {})", names()));
    let target = TARGETS.iter().find(|target| target.name == name).ok_or_else(unknown)?;
    let mut is_well = true;
    for file in files {
        is_well &= report(try_file(target, Path::new(file))?);
    }
    Ok(is_well)
}

fn write_seeds(target: &FuzzTarget) -> io::Result<()> {
    let directory = seed_directory(target);
    fs::create_dir_all(&directory)?;
    (target.seeds)().into_iter().try_for_each(|(name, bytes)| fs::write(directory.join(name), bytes))
}
