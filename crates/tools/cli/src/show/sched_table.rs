//! The data movement table as text.

use lasthop_api::cpus::CpuList;
use lasthop_api::sched_table::{SchedTable, TableRow};

use super::table::Table;

/// A line for each receive queue.
pub(crate) fn sched_table(table: &SchedTable) -> String {
    let policy = match table.is_used {
        true => "movement: used".to_owned(),
        false => "movement: not used, so there is no last touch; lasthop sched set movement=on".to_owned(),
    };
    if table.rows.is_empty() {
        return format!("{policy}\nno guest with open queues is in the view of the scheduler\n");
    }
    let mut rows =
        Table::new(&["VNIC", ">QUEUE", ">THREAD", "CHOSEN BY", "STATE", "LAST TOUCH", ">CPU", "WAKE ON"]);
    table.rows.iter().for_each(|row| rows.row(words(row, table.is_used)));
    format!("{policy}\n{}", rows.text())
}

fn words(row: &TableRow, is_used: bool) -> [String; 8] {
    let or_none = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
    let hint = (!row.hint.is_empty()).then(|| CpuList(row.hint.clone()).to_string());
    [
        row.vnic.clone(),
        row.queue.to_string(),
        or_none(row.tid.map(|tid| tid.to_string())),
        row.rule.clone(),
        row.activity.clone(),
        or_none(row.last_touch.clone().filter(|_| is_used)),
        or_none(row.cpu.map(|cpu| cpu.to_string())),
        or_none(hint),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_a_line_of_eighty_columns() {
        let row = TableRow {
            vnic: "vm1".to_owned(),
            queue: 63,
            tid: Some(4_194_303),
            rule: "same-number".to_owned(),
            activity: "sleeping".to_owned(),
            last_touch: Some("switch".to_owned()),
            cpu: Some(1023),
            hint: vec![0, 1, 2, 3],
        };
        let other = TableRow { tid: None, cpu: None, last_touch: None, hint: Vec::new(), ..row.clone() };
        let mut table = SchedTable { is_used: true, rows: vec![row, other] };
        let expected = "movement: used\n\
            VNIC  QUEUE   THREAD  CHOSEN BY    STATE     LAST TOUCH   CPU  WAKE ON\n\
            vm1      63  4194303  same-number  sleeping  switch      1023  0-3\n\
            vm1      63        -  same-number  sleeping  -              -  -\n";
        assert_eq!(sched_table(&table), expected);
        assert!(expected.lines().all(|line| line.len() <= 80));
        table.is_used = false;
        assert!(sched_table(&table).contains("sched set movement=on"));
        assert!(!sched_table(&table).contains(" switch "));
        assert!(sched_table(&SchedTable::default()).contains("no guest"));
    }
}
