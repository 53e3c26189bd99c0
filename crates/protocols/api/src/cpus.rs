//! Lists of CPUs as the kernel writes them: `0-3,6`.

use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Largest number of CPUs with which Linux can be built (CONFIG_NR_CPUS).
const CPUS_MAX: usize = 8192;

/// CPUs on which workers may run, ascending; empty for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"))]
pub struct CpuList(pub Vec<usize>);

impl CpuList {
    /// Refuses CPUs of the setting `key` that this process may not use.
    pub fn check(&self, key: &str) -> Result<(), Fault> {
        match allowed() {
            Some(allowed) => self.check_within(key, &allowed),
            None => Ok(()),
        }
    }

    fn check_within(&self, key: &str, allowed: &Self) -> Result<(), Fault> {
        let beyond: Vec<usize> = self.0.iter().filter(|cpu| !allowed.0.contains(cpu)).copied().collect();
        if beyond.is_empty() {
            return Ok(());
        }
        Err(Fault::params(format!(
            "{key}={self}: CPU {} cannot be used by this process; choose among {allowed}",
            Self(beyond)
        )))
    }
}

/// The CPUs that this process may use. `None` on machines with more CPUs than the kernel can report.
pub fn allowed() -> Option<CpuList> {
    let set = sched_getaffinity(None).ok()?;
    Some(CpuList((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
}

impl TryFrom<String> for CpuList {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl FromStr for CpuList {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let bad = || Fault::params(format!("\"{text}\" is not a list of CPUs; write it as 0-3,6"));
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first).ok_or_else(bad)?, number(last).ok_or_else(bad)?);
            if first > last {
                return Err(bad());
            }
            cpus.extend(first..=last);
            if cpus.len() > CPUS_MAX {
                return Err(bad());
            }
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl std::fmt::Display for CpuList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.0.chunk_by(|one, next| one + 1 == *next);
        let words: Vec<String> = ranges.filter_map(range).collect();
        f.write_str(&words.join(","))
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

/// Neighbours as `0-3`, one alone as `6`.
fn range(cpus: &[usize]) -> Option<String> {
    let (first, last) = (cpus.first()?, cpus.last()?);
    Some(if first == last { first.to_string() } else { format!("{first}-{last}") })
}

/// A CPU number in plain digits; `usize::from_str` would also take a sign.
fn number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|cpu| *cpu < CPUS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Vec<usize>> {
        text.parse::<CpuList>().ok().map(|list| list.0)
    }

    #[test]
    fn ranges_and_single_numbers_make_a_sorted_list() {
        assert_eq!(parsed("0-3,6"), Some(vec![0, 1, 2, 3, 6]));
        assert_eq!(parsed("6,1-2,2"), Some(vec![1, 2, 6]));
        assert_eq!(parsed("0"), Some(vec![0]));
    }

    #[test]
    fn everything_else_is_refused() {
        for text in
            ["", ",", "1,", "3-1", "a", "-1", "1-", "+1", "1-2-3", "8192", "0-99999999999999999999", " 1"]
        {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn a_list_survives_being_written_and_read() {
        let list: CpuList = "0-2,9".parse().expect("a list");
        assert_eq!(list.to_string(), "0-2,9");
        assert_eq!(list.to_string().parse(), Ok(list));
    }

    #[test]
    fn cpus_that_may_not_be_used_are_named_with_those_that_may() {
        let list = |text: &str| text.parse::<CpuList>().expect("a list");
        assert_eq!(list("0,3").check_within("cpus", &list("0-3")), Ok(()));
        let fault = list("1-5").check_within("cpus", &list("0-2,8")).expect_err("too many");
        assert_eq!(fault.message, "cpus=1-5: CPU 3-5 cannot be used by this process; choose among 0-2,8");
        let all = allowed().expect("a machine of today");
        assert!(!all.0.is_empty());
        assert_eq!(all.check("cpus"), Ok(()));
    }
}
