//! The caches of all CPUs: measured, or as sysfs tells them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::SystemTime;

use lasthop_api::placement::{CachesReport, MeasuredCaches};
use lasthop_runtime::fault::Fault;
use lasthop_sched::CpuPlace;
use lasthop_sched_view::cpu_places;

use crate::bounds::LIFETIME_S_MAX;
use crate::files::{read_file, replace_file};

/// The kernel's number of this boot: measurements of an earlier one say nothing.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The caches, and where they are from.
#[derive(Debug)]
pub(crate) struct Caches {
    file: PathBuf,
    sysfs: Vec<CpuPlace>,
    measured: Option<(MeasuredCaches, Vec<CpuPlace>)>,
}

impl Caches {
    /// Those that an earlier supervisor kept in `file`, if they are of this boot and not too old; else those of sysfs.
    pub(crate) fn new(file: PathBuf) -> Self {
        let mut caches = Self { file, sysfs: cpu_places(), measured: None };
        let kept = caches.read().filter(|kept| !is_over(kept, SystemTime::now()));
        if let Some(kept) = kept
            && let Ok(places) = caches.places_of(&kept)
        {
            caches.measured = Some((kept, places));
        }
        caches
    }

    /// Forgets a measurement that is too old.
    pub(crate) fn expire(&mut self) {
        if self.measured.as_ref().is_some_and(|(measured, _)| is_over(measured, SystemTime::now())) {
            self.remove();
        }
    }

    /// The place of each CPU, by number.
    pub(crate) fn places(&mut self) -> &[CpuPlace] {
        self.expire();
        self.measured.as_ref().map_or(&self.sysfs, |(_, places)| places)
    }

    /// Uses measured caches, and keeps them for the next supervisor; `None`: those of sysfs from now on.
    pub(crate) fn measure(&mut self, measured: Option<MeasuredCaches>) -> Result<(), Fault> {
        // CPUs may have come since the start.
        self.sysfs = cpu_places();
        let Some(measured) = measured else {
            self.remove();
            return Ok(());
        };
        let places = self.places_of(&measured)?;
        if measured.expires_s > measured.measured_s.saturating_add(LIFETIME_S_MAX) {
            let days = LIFETIME_S_MAX / 86_400;
            return Err(Fault::params(format!("expires_s is more than {days} days after measured_s")));
        }
        let written = replace_file(&self.file, &(boot_id(), &measured));
        written.map_err(|error| {
            let file = self.file.display();
            Fault::socket(format!("\"{file}\" cannot be written: {error}; free some room there (df, df -i)"))
        })?;
        self.measured = Some((measured, places));
        Ok(())
    }

    /// Forgets measured caches.
    pub(crate) fn remove(&mut self) {
        self.measured = None;
        let _ = std::fs::remove_file(&self.file);
    }

    /// Whether all CPUs share one last-level cache, so that there is nothing to choose.
    pub(crate) fn is_one(&self) -> bool {
        let places = self.present().0;
        places.iter().all(|place| place.llc == places[0].llc)
    }

    /// The places, and the measurement that they are from.
    fn present(&self) -> (&[CpuPlace], Option<&MeasuredCaches>) {
        let measured = self.measured.as_ref().filter(|(measured, _)| !is_over(measured, SystemTime::now()));
        measured.map_or((&self.sysfs, None), |(measured, places)| (places, Some(measured)))
    }

    pub(crate) fn report(&self) -> CachesReport {
        let (places, measured) = self.present();
        let count = |number: fn(&CpuPlace) -> u16| places.iter().map(number).collect::<BTreeSet<u16>>().len();
        CachesReport {
            cpus: places.len(),
            groups: count(|place| place.group),
            llcs: count(|place| place.llc),
            nodes: count(|place| place.node),
            measured: measured.cloned(),
        }
    }

    /// The places in measured caches, completed by sysfs.
    fn places_of(&self, measured: &MeasuredCaches) -> Result<Vec<CpuPlace>, Fault> {
        let count = self.sysfs.len();
        if measured.places.len() != count {
            return Err(Fault::params(format!(
                "the caches of {} CPUs were measured, and this machine has {count}; measure again: lasthop sched calibrate",
                measured.places.len()
            )));
        }
        Ok(measured.places.iter().copied().map(CpuPlace::of_numbers).collect())
    }

    fn read(&self) -> Option<MeasuredCaches> {
        let text = read_file(&self.file)?;
        let (boot, kept): (String, MeasuredCaches) = serde_json::from_str(&text).ok()?;
        (boot == boot_id()).then_some(kept)
    }
}

fn boot_id() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

fn is_over(measured: &MeasuredCaches, now: SystemTime) -> bool {
    let now_s = now.duration_since(SystemTime::UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
    now_s >= measured.expires_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_an_hour() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs() + 3600
    }

    fn measured(count: usize, expires_s: u64) -> MeasuredCaches {
        let places = (0..count as u16).map(|cpu| (cpu, cpu, 0)).collect();
        MeasuredCaches {
            places,
            measured_s: expires_s.saturating_sub(3600),
            expires_s,
            distances: Vec::new(),
        }
    }

    #[test]
    fn measured_caches_are_used_until_they_expire_and_kept_for_the_next_supervisor() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("caches");
        let mut caches = Caches::new(file.clone());
        let sysfs = caches.places().to_vec();
        caches.measure(Some(measured(sysfs.len(), in_an_hour()))).expect("as many CPUs");
        assert_eq!(caches.report().llcs, sysfs.len());
        let mut next = Caches::new(file.clone());
        assert_eq!(next.places(), caches.places());
        next.measure(None).expect("those of sysfs");
        assert!(next.places() == sysfs && !file.exists());
        next.measure(Some(measured(sysfs.len(), 2))).expect("as many CPUs");
        assert!(
            next.places() == sysfs && next.report().measured.is_none() && !file.exists(),
            "they are too old"
        );
        let fault =
            next.measure(Some(measured(sysfs.len() + 1, in_an_hour()))).expect_err("another machine's");
        assert!(fault.message.contains("lasthop sched calibrate"), "{fault}");
        let endless = MeasuredCaches { expires_s: u64::MAX, ..measured(sysfs.len(), in_an_hour()) };
        assert!(next.measure(Some(endless)).expect_err("for ever").message.contains("366 days"));
    }

    #[test]
    fn a_file_of_another_boot_or_of_another_kind_is_not_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("caches");
        let count = cpu_places().len();
        for text in [
            serde_json::to_string(&("another", measured(count, in_an_hour()))).expect("text"),
            "{".to_owned(),
        ] {
            std::fs::write(&file, text).expect("written");
            assert!(Caches::new(file.clone()).report().measured.is_none());
        }
    }
}
