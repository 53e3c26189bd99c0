//! The threads of a guest's front end that count as its vCPUs: `auto`, `none`, `name:CPU`, `4711+4712`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Highest thread id of Linux (PID_MAX_LIMIT).
const TID_MAX: u32 = 1 << 22;
/// Number of threads of one guest that the view of the scheduler tracks.
const THREADS_MAX: usize = 256;
/// Bytes of a thread's name (TASK_COMM_LEN) without the final NUL.
const NAME_BYTES_MAX: usize = 15;

/// A choice among the threads of the front end's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = "^(auto|none|name:[^,]{1,15}|[0-9]+(\\+[0-9]+)*)$", "default" = "auto"))]
pub struct Vcpus(String);

impl Vcpus {
    /// The text as users write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Vcpus {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(',');
        let is_thread =
            |number: &str| number.parse::<u32>().is_ok_and(|number| (1..=TID_MAX).contains(&number));
        let are_threads =
            || text.split('+').take(THREADS_MAX + 1).all(is_thread) && text.split('+').count() <= THREADS_MAX;
        let is_valid = match text.strip_prefix("name:") {
            Some(name) => is_name(name),
            None => matches!(text, "auto" | "none") || are_threads(),
        };
        if is_valid { Ok(Self(text.to_owned())) } else { Err(unknown(text)) }
    }
}

fn unknown(text: &str) -> Fault {
    Fault::params(format!(
        "vcpus={text} chooses no threads; write auto, none, name:BEGINNING, or numbers of threads as 4711+4712, {THREADS_MAX} at most"
    ))
}

impl TryFrom<String> for Vcpus {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<Vcpus> for String {
    fn from(vcpus: Vcpus) -> Self {
        vcpus.0
    }
}

impl fmt::Display for Vcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_checked() {
        for good in ["auto", "none", "name:CPU ", "1", "4711+4712"] {
            assert_eq!(good.parse::<Vcpus>().expect(good).to_string(), good);
        }
        let many = vec!["1"; THREADS_MAX + 1].join("+");
        for bad in ["", "name:", "name:of-16-bytes-long", "0", "1+", "-1", "Auto", "4194305", many.as_str()] {
            assert!(bad.parse::<Vcpus>().expect_err(bad).message.contains("4711+4712"), "{bad}");
        }
    }
}
