//! The configuration file, TOML.
//!
//! ```toml
//! module = "bridge"
//! cpus = "0-1"
//! workers = 2
//!
//! [[switch]]
//! name = "storage"
//! module = "dummy"
//!
//! [[vnic]]
//! name = "vm1"
//! mac = "02:00:00:00:00:01"
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use lasthop_modules::{FDB_ENTRIES_LIMIT, FDB_ENTRIES_MIN};

use crate::cpus::CpuList;
use crate::fault::Fault;
use crate::names;
use crate::switches::{SwitchName, SwitchSpec};
use crate::vnic::VnicSpec;
use crate::workers::Workers;

/// Largest file, in bytes: room for 1024 vnics with everything said.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How the switch process is to run; module and table are the default switch's.
#[derive(Clone, Debug)]
pub(crate) struct SwitchSettings {
    pub(crate) module: ModuleName,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) fdb_entries: Option<FdbEntries>,
    pub(crate) workers: Workers,
}

impl SwitchSettings {
    /// The switch that is always there. A table was not asked for by a module that has none.
    pub(crate) fn default_switch(&self) -> SwitchSpec {
        let spec = SwitchSpec {
            name: SwitchName::default(),
            module: self.module.clone(),
            fdb_entries: self.fdb_entries,
        };
        let fdb_entries = spec.fdb_entries.filter(|_| spec.table().is_some());
        SwitchSpec { fdb_entries, ..spec }
    }
}

/// Slots of the bridge's forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64")]
pub(crate) struct FdbEntries(pub(crate) usize);

impl TryFrom<i64> for FdbEntries {
    type Error = Fault;

    fn try_from(entries: i64) -> Result<Self, Fault> {
        let range = FDB_ENTRIES_MIN..=FDB_ENTRIES_LIMIT;
        let fitting = usize::try_from(entries).ok().filter(|entries| range.contains(entries));
        fitting.map(Self).ok_or_else(|| {
            Fault::params(format!(
                "fdb-entries={entries} is out of range; a forwarding table has {FDB_ENTRIES_MIN} to {FDB_ENTRIES_LIMIT}"
            ))
        })
    }
}

impl std::str::FromStr for FdbEntries {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let number = text.parse::<i64>();
        number.map_err(|_| Fault::params(format!("fdb-entries={text} is not a whole number")))?.try_into()
    }
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) module: Option<ModuleName>,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) fdb_entries: Option<FdbEntries>,
    pub(crate) workers: Option<Workers>,
    /// Those that were named, beside the default one.
    pub(crate) switches: Vec<SwitchSpec>,
    pub(crate) vnics: Vec<VnicSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    module: Option<ModuleName>,
    cpus: Option<CpuList>,
    #[serde(rename = "fdb-entries")]
    fdb_entries: Option<FdbEntries>,
    workers: Option<Workers>,
    #[serde(default)]
    switch: Vec<Spanned<SwitchSpec>>,
    #[serde(default)]
    vnic: Vec<Spanned<VnicSpec>>,
}

/// The name of a module that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ModuleName(String);

impl ModuleName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ModuleName {
    fn default() -> Self {
        Self("bridge".to_owned())
    }
}

impl TryFrom<String> for ModuleName {
    type Error = Fault;

    fn try_from(name: String) -> Result<Self, Fault> {
        name.parse()
    }
}

impl std::str::FromStr for ModuleName {
    type Err = Fault;

    fn from_str(name: &str) -> Result<Self, Fault> {
        if lasthop_modules::NAMES.contains(&name) {
            return Ok(Self(name.to_owned()));
        }
        let hint = names::hint(name, lasthop_modules::NAMES.iter().copied());
        let known = lasthop_modules::NAMES.join(", ");
        Err(Fault::params(format!("there is no module \"{name}\"{hint} (there are {known})")))
    }
}

/// Reads the file at `path`. Relative socket paths in it start at its directory.
pub(crate) fn read(path: &Path) -> Result<Config, Fault> {
    let shown = path.display();
    let failed = |why: &dyn std::fmt::Display| Fault::params(format!("cannot read \"{shown}\": {why}"));
    let meta = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(failed(&format_args!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut config = parse(&text).map_err(|(line, why)| Fault::params(format!("{shown}:{line}: {why}")))?;
    let base = std::path::absolute(path).map_err(|error| failed(&error))?;
    let base = base.parent().unwrap_or(Path::new("/"));
    config.vnics = config.vnics.into_iter().map(|vnic| vnic.based_at(base)).collect();
    Ok(config)
}

/// The configuration in `text`, or the line of the mistake and a sentence on it.
fn parse(text: &str) -> Result<Config, (usize, String)> {
    let file: File = toml::from_str(text).map_err(|error| mistake(text, &error))?;
    let switches = distinct(text, "switch", file.switch, |switch| switch.name.as_str())?;
    let vnics = distinct(text, "vnic", file.vnic, |vnic| vnic.name.as_str())?;
    let File { module, cpus, fdb_entries, workers, .. } = file;
    Ok(Config { module, cpus, fdb_entries, workers, switches, vnics })
}

/// All of one kind, or the line of the second one with a name.
fn distinct<T>(
    text: &str,
    kind: &str,
    all: Vec<Spanned<T>>,
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, (usize, String)> {
    let mut seen = std::collections::BTreeSet::new();
    let twice = all.iter().find(|one| !seen.insert(name(one.get_ref())));
    if let Some(one) = twice {
        let (line, name) = (line_of(text, one.span().start), name(one.get_ref()));
        return Err((line, format!("there is a {kind} \"{name}\" already")));
    }
    Ok(all.into_iter().map(Spanned::into_inner).collect())
}

fn mistake(text: &str, error: &toml::de::Error) -> (usize, String) {
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    (line, names::unknown_key(error.message()).unwrap_or_else(|| error.message().trim().replace('\n', ", ")))
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_understood() {
        let text = "module = \"dummy\"\ncpus = \"0-1\"\nfdb-entries = 4096\nworkers = 2\n[[switch]]\nname = \"red\"\n\
                    [[switch]]\nname = \"blue\"\nmodule = \"bridge\"\nfdb-entries = 128\n\
                    [[vnic]]\nname = \"a\"\n[[vnic]]\nname = \"b\"\nswitch = \"red\"\nsocket = \"s\"\n\
                    mode = \"connect\"\nmac = \"02:00:00:00:00:01\"\nqueues = 2\nmtu = 1400\nfeatures-off = [\"TSO\"]\n";
        let config = parse(text).expect("a good file");
        assert_eq!(config.module.as_ref().map(ModuleName::as_str), Some("dummy"));
        assert_eq!(config.cpus, Some(CpuList(vec![0, 1])));
        assert_eq!(config.fdb_entries, Some(FdbEntries(4096)));
        assert_eq!(config.workers, Some(Workers(2)));
        let specs: Vec<VnicSpec> = [
            "a",
            "b,switch=red,socket=s,mode=connect,mac=02:00:00:00:00:01,queues=2,mtu=1400,features-off=TSO",
        ]
        .map(|text| text.parse().expect("a vnic"))
        .into();
        assert_eq!(config.vnics, specs);
        let switches = ["red", "blue,fdb-entries=128"].map(|text| text.parse().expect("a switch"));
        assert_eq!(config.switches, switches);
    }

    #[test]
    fn an_empty_file_says_nothing() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn mistakes_have_a_line_and_a_remedy() {
        for (text, line, words) in [
            ("modul = \"bridge\"", 1, "did you mean \"module\""),
            ("\nmodule = \"brige\"", 2, "did you mean \"bridge\""),
            ("cpus = \"3-1\"", 1, "not a list of CPUs"),
            ("fdb-entries = 63", 1, "64 to 1048576"),
            ("fdb-entries = -1", 1, "64 to 1048576"),
            ("fdb_entries = 100", 1, "did you mean \"fdb-entries\""),
            ("workers = 17", 1, "workers must be a whole number from 1 to 16"),
            ("worker = 2", 1, "did you mean \"workers\""),
            ("[[vnic]]\nname = \"a\"\nque = 1", 3, "unknown key \"que\""),
            ("[[vnic]]\nname = \"a\"\nqueus = 1", 3, "did you mean \"queues\""),
            ("[[vnic]]\nname = \"a\"\n\nmac = \"01:00:00:00:00:01\"", 4, "unicast"),
            ("[[vnic]]\nname = \"a\"\nqueues = 99", 3, "1 to 32"),
            ("[[vnic]]\nname = \"a\"\nqueues = \"2\"", 3, "queues must be a whole number from 1 to 32"),
            ("[[vnic]]\nname = \"a\"\nqueues = 70000", 3, "queues must be a whole number from 1 to 32"),
            ("[[vnic]]\nname = \"a\"\nmtu = 9", 3, "68 to 65535"),
            ("[[vnic]]\nname = \"a\"\nmtu = 1.5", 3, "mtu must be a whole number from 68 to 65535"),
            ("[[vnic]]\nname = \"internal\"", 2, "choose another"),
            ("[[vnic]]\nname = \"a\"\nmode = \"both\"", 3, "listen"),
            ("[[vnic]]\nmtu = 1500", 1, "name"),
            ("[[vnic]]\nname = \"a\"\nswitch = \"a b\"", 3, "name of a switch"),
            ("[[switch]]\nmodule = \"dummy\"", 1, "name"),
            ("[[switch]]\nname = \"a\"\nmodul = \"dummy\"", 3, "did you mean \"module\""),
            ("[[switch]]\nname = \"a\"\nmodule = \"dumy\"", 3, "did you mean \"dummy\""),
            ("[[switch]]\nname = \"a\"\nfdb-entries = 1", 3, "64 to 1048576"),
            ("[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"", 3, "switch \"a\" already"),
            ("[[swich]]\nname = \"a\"", 1, "did you mean \"switch\""),
            ("[[vnic]]\nname = \"a\"\n[[vnic]]\nname = \"a\"", 3, "\"a\" already"),
            ("module = ", 1, ""),
        ] {
            let (at, why) = parse(text).expect_err(text);
            assert_eq!(at, line, "{text}: {why}");
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
