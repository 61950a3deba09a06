//! Files of rules: what they may say, and where they are refused.

use super::*;

#[test]
fn an_empty_file_has_the_built_in_rules() {
    let rules = Rules::built_in();
    assert!(rules.rules.len() >= 14 && rules.receivers.is_empty(), "{}", rules.rules.len());
    let signals: Vec<_> = rules.rules.iter().map(|rule| rule.measure.clone()).collect();
    for name in Signal::names() {
        let signal = Signal::named(name).expect("it has this name");
        assert!(signals.contains(&Measure::Signal(signal)), "no built-in rule looks at {name}");
    }
}

#[test]
fn a_file_adds_replaces_and_turns_off_rules_and_names_receivers() {
    let text = r#"
every = "5s"
off = ["queue_waits"]
[[rule]]
name = "data_stall"
signal = "data_stall"
above = 0.2
[[rule]]
name = "cold"
metric = "heat"
below = 3
clear = 4
for = "2m"
clear_for = "250ms"
severity = "critical"
summary = "{subject} is cold"
hint = "warm it"
[[receiver]]
name = "ops"
webhook = "https://example.org/x"
severity = "critical"
[[receiver]]
name = "run"
command = ["/bin/page", "--now"]
"#;
    let read = Rules::read(text).expect("sound");
    assert_eq!(read.every, Duration::from_secs(5));
    let named = |name: &str| read.rules.iter().filter(|rule| rule.name == name).collect::<Vec<_>>();
    assert_eq!(named("queue_waits").len(), 0);
    assert_eq!((named("data_stall").len(), named("data_stall")[0].bound), (1, Bound::Above(0.2)));
    assert_eq!(named("data_stall")[0].summary, "data_stall of {subject} is {value} ({parts})");
    let cold = Rule {
        name: "cold".into(),
        bound: Bound::Below(3.0),
        clear: 4.0,
        hold: Duration::from_secs(120),
        clear_hold: Duration::from_millis(250),
        severity: Severity::Critical,
        summary: "{subject} is cold".into(),
        hint: "warm it".into(),
        ..rule(0, 0)
    };
    assert_eq!(named("cold"), [&cold]);
    let ways: Vec<&Way> = read.receivers.iter().map(|receiver| &receiver.way).collect();
    let command = Way::Command(vec!["/bin/page".into(), "--now".into()]);
    assert_eq!(ways, [&Way::Webhook("https://example.org/x".into()), &command]);
}

#[test]
fn a_metric_that_agents_read_is_one_of_nodes_with_its_own_unit() {
    let read =
        |metric: &str| Rules::read(&format!("[[rule]]\nname = 'a'\nmetric = '{metric}'\nabove = 1")).expect("sound");
    let measure = |metric: &str| read(metric).rules.pop().expect("it is the last").measure;
    assert_eq!(measure("gpu.temperature_celsius"), Measure::NodeMetric("gpu.temperature_celsius".to_owned()));
    assert_eq!(measure("host_load"), Measure::Metric("host_load".to_owned()), "ranks may report any other name");
    assert_eq!((measure("gpu.clocks_held").unit(), measure("gpu.power_watts").unit()), (Unit::Ratio, Unit::Number));
}

#[test]
fn a_defect_is_refused_with_its_line_and_column() {
    let check = |text: &str, place: &str, part: &str| {
        let error = Rules::read(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("{place}: ")) && error.contains(part), "{error:?}, not {place} {part:?}");
    };
    check("every = ", "1:9", "");
    check("\nevery = 'soon'", "2:9", "\"soon\" is no duration");
    check("every = '1h'", "1:9", "from 100ms to 10m");
    check("often = '1s'", "1:1", "unknown field `often`");
    check("off = ['data_stall',\n  'nothing']", "2:3", "no built-in rule \"nothing\"");
    let rule = |lines: &str| format!("[[rule]]\nname = 'a'\n{lines}");
    check(&rule("signal = 'noise'\nabove = 1"), "3:10", "there is no signal \"noise\"; there are loss_not_finite,");
    check(&rule("above = 1"), "1:1", "either a signal or a metric");
    check(
        &rule("metric = 'gpu.heat'\nabove = 1"),
        "3:10",
        "agents read no metric \"gpu.heat\"; docs/reference/metrics.md",
    );
    check(&rule("metric = 'host.disk_busy_ratio.sda'\nabove = 1"), "3:10", "agents read no metric");
    check(&rule("metric = 'm'"), "1:1", "either above or below");
    check(&rule("metric = 'm'\nabove = nan"), "4:9", "NaN is no limit");
    check(&rule("metric = 'm'\nabove = 'x'"), "4:9", "invalid type");
    check(&rule("metric = 'm'\nabove = 1\nclear = 2"), "5:9", "breaks the rule itself");
    check(&rule("metric = 'm'\nabove = 1\nfor = '-1s'"), "5:7", "is no duration");
    check(&rule("metric = 'm'\nabove = 1\nfor = '99999999999999999999d'"), "5:7", "is no duration");
    check(&rule("metric = 'm'\nabove = 1\nseverity = 'bad'"), "5:12", "info, warning or critical");
    check(&rule("metric = 'm'\nabove = 1\nsummary = '{it}'"), "5:11", "{value}, {subject}, {parts}");
    check("[[rule]]\nname = 'ä b'\nmetric = 'm'\nabove = 1", "2:8", "is no name");
    let twice = "[[rule]]\nname='a'\nmetric='m'\nabove=1\n";
    check(&format!("{twice}{twice}"), "6:6", "two rules are named \"a\"");
    check("[[receiver]]\nname = 'x'", "1:1", "exactly one of webhook");
    check("[[receiver]]\nname = 'x'\nwebhook = 'ftp://x'", "3:11", "http or https URL");
    check("[[receiver]]\nname = 'x'\nslack = 'http://x'\nwebhook = 'http://x'", "1:1", "exactly one of");
    check("[[receiver]]\nname = 'x'\nemail = 'nobody'", "3:9", "is no e-mail address");
    check("[[receiver]]\nname = 'x'\ncommand = []", "3:11", "a command needs a program");
    check(&" ".repeat((1 << 20) + 1), "1:1", "larger than");
}
