//! Texts that are printed for pasting, installation or completion.

use serde_json::Value;

use lasthop_rig::{Switch, lasthop};

#[test]
fn a_vnic_is_shown_for_each_vmm() {
    let switch = Switch::start(&["--vnic", "vm1,mac=02:00:00:00:00:01"]);
    let path = switch.path("vm1.sock");
    let path = path.to_str().expect("text");
    for (flag, words) in [
        ("--qemu", "-device virtio-net-pci,netdev=net-vm1,mac=02:00:00:00:00:01"),
        ("--libvirt", "<mac address='02:00:00:00:00:01'/>"),
        ("--cloud-hypervisor", "--net mac=02:00:00:00:00:01,vhost_user=true,socket="),
        ("--testpmd", "mac=02:00:00:00:00:01,queues=1"),
    ] {
        let shown = switch.ask(&["vnic", "show", "vm1", flag]).ok();
        assert!(shown.contains(words) && shown.contains(path), "{flag}: {shown}");
        let json = switch.json(&["vnic", "show", "vm1", flag]);
        assert_eq!(json[flag.trim_start_matches('-')].as_str(), Some(shown.as_str()));
    }
    for flag in ["--qemu", "--libvirt"] {
        let shown = switch.ask(&["vnic", "show", "vm1", flag, "--tcg"]);
        assert!(shown.out.contains("vectors") && !shown.err.contains("--tcg"), "{}{}", shown.out, shown.err);
    }
    assert_eq!(switch.ask(&["vnic", "show", "vm1", "--tcg"]).code, Some(2), "of a VMM's words only");
    assert_eq!(switch.ask(&["vnic", "show", "vm1", "--qemu", "--testpmd"]).code, Some(2), "one at a time");
}

#[test]
fn help_fits_a_terminal() {
    for words in [&["run"][..], &["vnic", "add"], &["vnic", "set"], &["capture"], &["doctor"]] {
        let help = lasthop(&[words, &["--help"]].concat()).ok();
        let wide = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{words:?}");
    }
}

#[test]
fn the_services_file_is_checked_by_default_and_man_is_in_the_help() {
    let checked = lasthop(&["check"]);
    let said = format!("{}{}", checked.out, checked.err);
    assert!(said.contains("/etc/lasthop/lasthop.toml"), "{said}");
    let has_service = std::path::Path::new("/etc/lasthop/lasthop.toml").exists();
    assert_ne!(has_service, said.contains("name another one: lasthop check -c FILE"), "{said}");
    assert!(lasthop(&["--help"]).ok().contains("\n  man "));
}

#[test]
fn the_schema_is_json() {
    let schema: Value = serde_json::from_str(&lasthop(&["check", "--schema"]).ok()).expect("JSON");
    assert_eq!(schema["title"], "Lasthop configuration");
}

#[test]
fn shells_and_man_learn_the_command_line() {
    for shell in ["bash", "zsh", "fish"] {
        let script = lasthop(&["completions", shell]).ok();
        assert!(script.contains("lasthop") && script.contains("dry-run"), "{shell}");
    }
    assert_eq!(lasthop(&["completions", "tcsh"]).code, Some(2));
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("man1");
    lasthop(&["man", "--out", dir.to_str().expect("text")]).ok();
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    assert!(page("lasthop.1").contains("lasthop\\-vnic"), "{}", page("lasthop.1"));
    assert!(page("lasthop-vnic-set.1").contains("link=down|up"));
    assert!(page("lasthop-switch-add.1").contains("module=flow"));
    assert!(page("lasthop-switch-process.1").is_empty(), "not for people");
    std::fs::write(base.path().join("file"), "").expect("written");
    let wrong = base.path().join("file/x");
    assert!(lasthop(&["man", "--out", wrong.to_str().expect("text")]).refused().contains("name a directory"));
}
