//! `NAME[,module=bridge|dummy|flow][,fdb-entries=N][,controller=embedded|external|none]
//! [,fail-mode=standalone|secure]`.

use std::str::FromStr;

use crate::modules::ModuleName;
use crate::names;
use crate::options::{of_the_whole, options};
use lasthop_runtime::fault::Fault;

use super::SwitchSpec;

impl FromStr for SwitchSpec {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (name, options) = options(text)?;
        let (controller, fail_mode) = Default::default();
        let mut spec = Self {
            name: name.parse()?,
            module: ModuleName::default(),
            fdb_entries: None,
            controller,
            fail_mode,
        };
        for (key, value) in options {
            match key {
                "module" => spec.module = value.parse()?,
                "controller" => spec.controller = value.parse()?,
                "fail-mode" => spec.fail_mode = Some(value.parse()?),
                "fdb-entries" => spec.fdb_entries = Some(value.parse()?),
                _ => return Err(unknown(key)),
            }
        }
        spec.check()?;
        Ok(spec)
    }
}

pub(super) fn unknown(key: &str) -> Fault {
    if let Some(fault) = of_the_whole(key) {
        return fault;
    }
    let hint = names::hint(key, SwitchSpec::KEYS.iter().copied());
    let known = SwitchSpec::KEYS.join(", ");
    Fault::params(format!("a switch has no option \"{key}\"{hint} (there are {known})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::FdbEntries;

    fn parse(text: &str) -> Result<SwitchSpec, String> {
        text.parse().map_err(|fault: Fault| fault.message)
    }

    #[test]
    fn every_option_arrives() {
        let spec = parse("red").expect("a name");
        assert_eq!((spec.name.as_str(), spec.module.as_str(), spec.table()), ("red", "flow", Some(16384)));
        let spec = parse("red,fdb-entries=64,module=bridge").expect("all options");
        assert_eq!((spec.fdb_entries, spec.table()), (Some(FdbEntries(64)), Some(64)));
        let spec = parse("blue,module=dummy").expect("a dummy");
        assert_eq!((spec.module.as_str(), spec.table()), ("dummy", None));
        let copy = serde_json::to_string(&spec).and_then(|json| serde_json::from_str(&json));
        assert_eq!(copy.ok(), Some(spec));
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, words) in [
            ("a b", "name of a switch"),
            ("a,modul=dummy", "did you mean \"module\""),
            ("a,module=brige", "did you mean \"bridge\""),
            ("a,fdb-entries=1", "64 to 1048576"),
            ("a,fdb-entries=64,fdb-entries=128", "twice"),
            ("a,module", "KEY=VALUE"),
            ("a,module=dummy,fdb-entries=64", "leave fdb-entries out"),
            ("a,module=flow,controller=extern", "did you mean \"external\""),
            ("a,module=bridge,controller=external", "set module to flow"),
            ("a,module=bridge,fail-mode=secure", "leave fail-mode out"),
            ("a,module=flow,fail-mode=secur", "did you mean \"secure\""),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
