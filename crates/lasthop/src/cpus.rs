//! Lists of CPUs as the kernel writes them: `0-3,6`.

use std::str::FromStr;

use serde::Deserialize;

use crate::fault::Fault;

/// Highest CPU number plus one; what Linux can be built for (CONFIG_NR_CPUS).
const CPUS_MAX: usize = 8192;

/// CPUs on which workers may run, ascending; none means all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CpuList(pub(crate) Vec<usize>);

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
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl std::fmt::Display for CpuList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&words.join(","))
    }
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
        assert_eq!(list.to_string().parse(), Ok(list));
    }
}
