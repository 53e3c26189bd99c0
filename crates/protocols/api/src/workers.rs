//! Number of threads that move packets.

use std::str::FromStr;

use lasthop_fabric::bounds::WORKERS_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::{self, CpuList};
use lasthop_runtime::fault::Fault;

/// Number of CPUs from which on a second worker takes none from its guests.
const CPUS_FOR_TWO: usize = 4;

/// A number of workers, 1 to `WORKERS_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "i64")]
#[schemars(inline, extend("minimum" = 1, "maximum" = WORKERS_MAX))]
pub struct Workers(pub usize);

impl Workers {
    /// One for each CPU in the list for workers. Without a list, two on machines with CPUs to spare: then neither
    /// direction of a connection waits for the other, nor a guest for a neighbour's bulk traffic. More would take CPUs
    /// from guests.
    pub(crate) fn for_cpus(cpus: Option<&CpuList>) -> Self {
        match cpus {
            Some(CpuList(cpus)) if !cpus.is_empty() => Self(cpus.len().min(WORKERS_MAX)),
            _ => Self::for_machine(cpus::allowed().map_or(1, |allowed| allowed.0.len())),
        }
    }

    /// Refuses more helpers, one for each of `cpus`, than there is room for beside the workers.
    pub(crate) fn check_beside(self, cpus: Option<&CpuList>) -> Result<(), Fault> {
        let helpers = cpus.map_or(0, |cpus| cpus.0.len());
        if self.0 + helpers <= WORKERS_MAX {
            return Ok(());
        }
        let room = WORKERS_MAX - self.0;
        Err(Fault::params(format!(
            "helper-cpus names {helpers} CPUs; with {} workers there may be {room} helpers, {WORKERS_MAX} in all",
            self.0
        )))
    }

    fn for_machine(cpus: usize) -> Self {
        Self(if cpus >= CPUS_FOR_TWO { 2 } else { 1 })
    }
}

impl TryFrom<i64> for Workers {
    type Error = Fault;

    fn try_from(number: i64) -> Result<Self, Fault> {
        let number = usize::try_from(number).ok().filter(|number| (1..=WORKERS_MAX).contains(number));
        number.map(Self).ok_or_else(out_of_range)
    }
}

impl FromStr for Workers {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        text.parse::<i64>().map_err(|_| out_of_range())?.try_into()
    }
}

fn out_of_range() -> Fault {
    Fault::params(format!("workers must be a whole number from 1 to {WORKERS_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_range_only() {
        assert_eq!("64".parse(), Ok(Workers(64)));
        for text in ["0", "65", "-1", "two", ""] {
            let fault = text.parse::<Workers>().expect_err(text);
            assert!(fault.message.contains("1 to 64"), "{text}: {fault}");
        }
    }

    #[test]
    fn a_cpu_set_aside_has_its_worker_and_small_machines_have_one() {
        let list = |text: &str| text.parse::<CpuList>().expect("a list");
        assert_eq!(Workers::for_cpus(Some(&list("3"))), Workers(1));
        assert_eq!(Workers::for_cpus(Some(&list("0-2"))), Workers(3));
        assert_eq!(Workers::for_cpus(Some(&list("0-99"))), Workers(64));
        assert_eq!([1, 3, 4, 64].map(Workers::for_machine), [1, 1, 2, 2].map(Workers));
    }
}
