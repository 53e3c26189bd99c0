//! A switch process died: its guests' sessions are handed to the next one.

use std::collections::BTreeMap;

use serde_json::Value;

use lasthop_api::orders::Answer;
use lasthop_runtime::fault::Fault;

use super::Supervisor;

impl Supervisor {
    /// The switch goes on with sessions for which it was ready, but for some.
    pub(super) fn went_on(
        &mut self,
        sessions: Vec<(u32, u64)>,
        result: Result<Answer, Fault>,
    ) -> Result<Value, Fault> {
        let Answer::WentOn { refused } = result? else { return Ok(Value::Null) };
        let mut refused: BTreeMap<u64, Fault> = refused.into_iter().collect();
        for (number, attachment) in sessions {
            let result = refused.remove(&attachment).map_or(Ok(()), Err);
            self.taken_over(number, attachment, result);
        }
        Ok(Value::Null)
    }

    /// The switch goes on with a session, or cannot.
    pub(super) fn taken_over(&mut self, number: u32, attachment: u64, result: Result<(), Fault>) {
        if self.sessions.taken_over(number, attachment, result, &mut self.ports, &mut self.store) {
            self.advance_port(number);
        }
    }
}
