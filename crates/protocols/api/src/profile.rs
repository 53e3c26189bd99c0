//! A profile of the switch: its parameters and its report.

use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Longest profile in seconds: a profile without a waiting client must end.
pub const PROFILE_SECONDS_MAX: u64 = 60;
/// Default: one round in this many is sampled, which costs too little to measure.
pub const PROFILE_EVERY: u32 = 256;
/// Largest permitted value. With 1 every round is measured, and measuring is most of the work.
const PROFILE_EVERY_MAX: u32 = 1 << 20;

/// The parameters of the method `profile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSpec {
    /// How long, in seconds.
    pub duration_s: u64,
    /// One round in this number is sampled.
    #[serde(default)]
    pub every: Option<u32>,
}

impl ProfileSpec {
    /// Checks the numbers.
    ///
    /// # Errors
    /// A fault that names the number and its bounds.
    pub fn check(&self) -> Result<(), Fault> {
        if !(1..=PROFILE_SECONDS_MAX).contains(&self.duration_s) {
            let why = format!("a profile takes 1 to {PROFILE_SECONDS_MAX} seconds, not {}", self.duration_s);
            return Err(Fault::params(why));
        }
        if !(1..=PROFILE_EVERY_MAX).contains(&self.every()) {
            let why =
                format!("one round of 1 to {PROFILE_EVERY_MAX} can be sampled, not one of {}", self.every());
            return Err(Fault::params(why));
        }
        Ok(())
    }

    /// One round in this number is sampled.
    pub fn every(&self) -> u32 {
        self.every.unwrap_or(PROFILE_EVERY)
    }
}

/// The line after the reply to `profile`, when its time is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileReport {
    /// Its duration.
    pub seconds: f64,
    /// The clock of the cycles: "tsc", or "monotonic" with ns instead of cycles.
    pub clock: String,
    /// Cycles per second.
    pub cycles_per_second: f64,
    /// One round in this number was sampled.
    pub every: u32,
    pub workers: Vec<ProfiledWorker>,
    pub ports: Vec<ProfiledPort>,
}

/// The rounds of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfiledWorker {
    pub worker: usize,
    pub rounds: u64,
    pub sampled_rounds: u64,
    /// Intervals that were omitted because the thread had lost its CPU.
    pub interrupted: u64,
    /// Cycles of sampled rounds, including sleep, measured separately from their stages.
    pub sampled_cycles: u64,
    /// Cycles asleep in sampled rounds.
    pub asleep_cycles: u64,
    /// Cycles in sampled rounds that belong to no port, by stage.
    pub cycles: Vec<StageCost>,
    /// The sum of stages in sampled rounds with packets, as percentage of the mean of other such rounds; `None` without
    /// any.
    pub accounted_percent: Option<f64>,
    /// Time that reading the counter took, as percentage of the time of rounds with packets; `None` without any.
    pub cost_percent: Option<f64>,
}

/// Packets of a port that a worker fetched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfiledPort {
    pub port: String,
    pub worker: usize,
    pub sampled_visits: u64,
    pub sampled_packets: u64,
    /// Cycles of these visits, by stage.
    pub cycles: Vec<StageCost>,
}

/// Cycles of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCost {
    pub stage: String,
    pub cycles: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_profile_is_bounded() {
        let spec = |text| serde_json::from_value::<ProfileSpec>(text).expect("known keys");
        assert_eq!(spec(json!({"duration_s": 60})).check(), Ok(()));
        assert_eq!(spec(json!({"duration_s": 1})).every(), PROFILE_EVERY);
        for bad in [json!({"duration_s": 0}), json!({"duration_s": 61}), json!({"duration_s": 1, "every": 0})]
        {
            assert!(spec(bad.clone()).check().is_err(), "{bad}");
        }
        assert!(serde_json::from_value::<ProfileSpec>(json!({})).is_err(), "a duration is needed");
    }
}
