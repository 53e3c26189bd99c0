use std::cell::RefCell;

use super::super::value::Texts;
use super::super::wanted_interface::TYPES;
use super::*;

/// A switch that keeps ports in memory.
#[derive(Default)]
struct Fake {
    ports: RefCell<BTreeMap<String, Value>>,
    is_down: RefCell<bool>,
    /// An error for `port.add`.
    refusal: RefCell<Option<Fault>>,
    asked: RefCell<usize>,
    /// Whether it is of a version without makers of ports.
    is_old: bool,
}

impl Fake {
    fn ask(&self, method: &str, params: &Value) -> Result<Value, Fault> {
        *self.asked.borrow_mut() += 1;
        if *self.is_down.borrow() {
            return Err(Fault::socket("no switch is running"));
        }
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let mut ports = self.ports.borrow_mut();
        match method {
            "switch.list" => Ok(
                json!({"switches": [{"name": "default", "controller": "external"}, {"name": "ovs-system", "controller": "external"}]}),
            ),
            "port.show" => {
                ports.get(&name).cloned().ok_or_else(|| Fault::new(Kind::NoSuchVnic, "no such port"))
            }
            "port.del" => Ok(ports.remove(&name).map(|_| json!(true)).expect("it is there")),
            "port.add" => {
                if let Some(fault) = self.refusal.borrow().clone() {
                    return Err(fault);
                }
                if self.is_old && params.get(MADE_BY).is_some() {
                    return Err(Fault::params("unknown key \"made_by\" (there are name, backend)"));
                }
                ports.insert(name, json!({"settings": params, "socket": params["socket"]}));
                Ok(json!({}))
            }
            "port.set" if self.is_old => Err(Fault::params("a port has no key \"made-by\"")),
            "port.set" => {
                ports.get_mut(&name).expect("it is there")["settings"][MADE_BY] = params[MADE_BY].clone();
                Ok(json!({}))
            }
            "vlan.show" => {
                Ok(json!({"vnics": ports.keys().map(|name| json!({"name": name})).collect::<Vec<_>>()}))
            }
            _ => panic!("{method} is not needed"),
        }
    }

    fn names(&self) -> Vec<String> {
        self.ports.borrow().keys().cloned().collect()
    }
}

/// The switch, and a directory for sockets and the record.
struct Rig {
    fake: Fake,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self { fake: Fake::default(), dir: tempfile::tempdir().expect("a directory") }
    }

    fn run(&self, test: impl FnOnce(Guests<'_>)) {
        let ask = |method: &str, params: &Value| self.fake.ask(method, params);
        let directories =
            Directories { run: self.dir.path().canonicalize().expect("it is there"), others: Vec::new() };
        let settings = Settings { directories, queues: 4, socket_group: Some("kvm".into()) };
        test(Guests::new(&ask, settings, self.dir.path().join("record")));
    }

    fn client(&self, name: &str, socket: &str) -> WantedInterface {
        let path = self.dir.path().join(socket).display().to_string();
        let options: Texts = [("vhost-server-path".to_owned(), path)].into();
        WantedInterface { name: name.into(), kind: TYPES[1].into(), options, socket_dir: None }
    }
}

fn server(name: &str) -> WantedInterface {
    WantedInterface { name: name.into(), kind: TYPES[0].into(), options: Texts::new(), socket_dir: None }
}

fn later() -> Instant {
    Instant::now() + RETRY * 2
}

#[test]
fn vnics_come_with_their_interfaces_and_go_after_them() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        guests.want(&rig.client("vm1", "s1")).expect("made");
        guests.want(&server("vm2")).expect("made");
        let made = rig.fake.ports.borrow()["vm1"]["settings"].clone();
        assert_eq!(
            (&made["mode"], &made["switch"], &made["queues"]),
            (&json!("connect"), &json!("ovs-system"), &json!(4))
        );
        assert_eq!(made.get("socket_group"), None, "QEMU makes that socket");
        let made = rig.fake.ports.borrow()["vm2"]["settings"].clone();
        assert_eq!((&made["mode"], &made["socket_group"]), (&json!("listen"), &json!("kvm")));
        guests.release("vm1");
        guests.act(Instant::now());
        assert_eq!(rig.fake.names(), ["vm1", "vm2"], "ovs-vswitchd still has it");
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm2"]);
        guests.release("vm2");
        guests.want(&server("vm2")).expect("it is there");
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm2"], "it came back");
        guests.want(&rig.client("vm2", "s2")).expect("made anew");
        assert_eq!(rig.fake.ports.borrow()["vm2"]["settings"]["mode"], "connect");
        assert_eq!(guests.due(), guests.check_at, "nothing else is to be done");
        guests.release("vm2");
        guests.act(later());
        assert_eq!(guests.due(), None, "without a vnic nothing is looked for");
    });
}

#[test]
fn a_restart_finds_its_own_vnics_and_leaves_those_of_others() {
    let rig = Rig::new();
    let others = json!({"name": "vm3", "backend": "vhost-user", "mode": "listen", "socket": rig.dir.path().canonicalize().expect("it is there").join("vm3")});
    rig.fake.ask("port.add", &others).expect("added");
    rig.run(|mut guests| {
        for wish in [server("vm1"), server("vm2"), server("vm3")] {
            guests.want(&wish).expect("made, or used");
        }
    });
    rig.run(|mut guests| {
        guests.begin();
        guests.want(&server("vm1")).expect("it is there");
        guests.end();
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm1", "vm3"]);
        let told = guests.want(&rig.client("vm3", "s3")).expect_err("another port");
        assert!(told.is_final && told.text.contains("lasthop port del vm3"), "{told:?}");
    });
}

#[test]
fn a_vnic_that_was_changed_by_others_is_not_removed() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        guests.want(&server("vm1")).expect("made");
        rig.fake.ports.borrow_mut().get_mut("vm1").expect("made")["socket"] = json!("/elsewhere");
        guests.release("vm1");
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm1"]);
        assert_eq!(guests.due(), None);
    });
}

#[test]
fn vnics_come_when_the_switch_does() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        *rig.fake.is_down.borrow_mut() = true;
        for number in 0..50 {
            let told = guests.want(&server(&format!("vm{number}"))).expect_err("no switch");
            assert!(!told.is_final);
        }
        assert_eq!(*rig.fake.asked.borrow(), 1, "it is not asked for each");
        *rig.fake.is_down.borrow_mut() = false;
        guests.act(later());
        assert_eq!(rig.fake.names().len(), 50);
        assert_eq!(guests.due(), guests.check_at);
        rig.fake.ports.borrow_mut().clear();
        guests.renew();
        assert_eq!(rig.fake.names().len(), 50, "a new switch has them, too");
        guests.release("vm0");
        *rig.fake.is_down.borrow_mut() = true;
        guests.act(later());
        assert!(guests.due().is_some(), "it is removed when the switch answers");
    });
}

#[test]
fn one_refusal_does_not_concern_other_vnics() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        *rig.fake.refusal.borrow_mut() = Some(Fault::params("there is no group kvm"));
        let told = guests.want(&server("vm1")).expect_err("refused");
        assert!(!told.is_final && told.text.contains("group"), "{told:?}");
        *rig.fake.refusal.borrow_mut() = None;
        guests.want(&server("vm2")).expect("made");
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm1", "vm2"]);
    });
}

#[test]
fn thousands_of_interfaces_cost_nothing_but_their_rows() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        *rig.fake.is_down.borrow_mut() = true;
        for number in 0..5000 {
            let told = guests.want(&server(&format!("vm{number}"))).expect_err("no switch");
            assert_eq!(told.is_final, number >= WANTED_MAX, "{told:?}");
        }
        assert_eq!(guests.late.len(), WANTED_MAX);
    });
}

#[test]
fn a_vnic_that_somebody_removed_is_made_again() {
    let rig = Rig::new();
    rig.run(|mut guests| {
        guests.want(&server("vm1")).expect("made");
        guests.want(&server("vm2")).expect("made");
        rig.fake.ports.borrow_mut().remove("vm1");
        let asked = *rig.fake.asked.borrow();
        guests.act(Instant::now());
        assert_eq!(*rig.fake.asked.borrow(), asked, "it is not looked for all the time");
        guests.act(later());
        assert_eq!(rig.fake.names(), ["vm1", "vm2"]);
        let asked = *rig.fake.asked.borrow();
        guests.act(later());
        assert_eq!(*rig.fake.asked.borrow(), asked + 1, "one question for all");
        *rig.fake.is_down.borrow_mut() = true;
        guests.act(later());
        let pause = guests.due().expect("a time").duration_since(Instant::now());
        assert!(pause > CHECK * 2, "a switch that does not answer is asked less often");
    });
}

#[test]
fn vnics_name_their_maker() {
    let rig = Rig::new();
    let maker = |name: &str| rig.fake.ports.borrow()[name]["settings"][MADE_BY].clone();
    let others = json!({"name": "vm2", "backend": "vhost-user", "mode": "listen", "socket": rig.dir.path().canonicalize().expect("it is there").join("vm2")});
    rig.fake.ask("port.add", &others).expect("added");
    rig.run(|mut guests| {
        guests.want(&server("vm1")).expect("made");
        assert_eq!(maker("vm1"), OVS_RELAY);
        // As an earlier version made it.
        rig.fake.ports.borrow_mut().get_mut("vm1").expect("made")["settings"][MADE_BY] = Value::Null;
        guests.want(&server("vm1")).expect("it is there");
        guests.want(&server("vm2")).expect("used");
        assert_eq!((maker("vm1"), maker("vm2")), (json!(OVS_RELAY), Value::Null));
    });
}

#[test]
fn a_switch_of_an_earlier_version_gives_vnics_too() {
    let mut rig = Rig::new();
    rig.fake.is_old = true;
    rig.run(|mut guests| {
        guests.want(&server("vm1")).expect("made");
        guests.want(&server("vm1")).expect("it is there");
        assert_eq!(rig.fake.names(), ["vm1"]);
    });
}
