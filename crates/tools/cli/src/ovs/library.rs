//! Finds the library that diverts Open vSwitch's programs.

use std::path::{Path, PathBuf};

use lasthop_runtime::fault::Fault;

const NAME: &str = "liblasthop_ovs_glue.so";
/// Names the library if it is installed elsewhere.
const VARIABLE: &str = "LASTHOP_OVS_GLUE";

/// Its path: from the environment, beside this program, or in the `lib/lasthop` that belongs to this program's `bin`.
pub(super) fn find() -> Result<PathBuf, Fault> {
    let program = std::env::current_exe().map_err(|error| Fault::internal("find this program", error))?;
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let places = places(named, &program);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| missing(&places))
}

fn places(named: Option<PathBuf>, program: &Path) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let bin = program.parent().unwrap_or(Path::new("/"));
    let installed = bin.parent().map(|prefix| prefix.join("lib/lasthop").join(NAME));
    std::iter::once(bin.join(NAME)).chain(installed).collect()
}

fn missing(places: &[PathBuf]) -> Fault {
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Fault::params(format!(
        "the library for Open vSwitch's programs is not at {}; install it (make install, or the package), build it \
         (cargo build --release -p lasthop-ovs-glue), or name it by {VARIABLE}",
        looked.join(" or ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_beside_the_program_or_where_it_is_installed() {
        let found = places(None, Path::new("/usr/bin/lasthop"));
        assert_eq!(found, [Path::new("/usr/bin").join(NAME), Path::new("/usr/lib/lasthop").join(NAME)]);
        let named = places(Some(PathBuf::from("/opt/glue.so")), Path::new("/usr/bin/lasthop"));
        assert_eq!(named, [PathBuf::from("/opt/glue.so")]);
        assert!(missing(&named).to_string().contains("/opt/glue.so"));
    }
}
