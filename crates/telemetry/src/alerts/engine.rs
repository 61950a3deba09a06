//! The engine: from readings to alerts that begin, go on and end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::Timestamp;

use super::alert::{Alert, Silence, State, Wish};
use super::rule::{Reading, Rule, Subject};

/// Alerts that are pending or firing at a time; further ones are counted.
const ALERTS_MAX: usize = 10_000;
/// Ended alerts that are still shown.
const ENDED_MAX: usize = 200;
/// Parts of a subject that an alert lists.
const PARTS_MAX: usize = 16;
/// Parts of which receivers of one alert are told; further ones come with the next repetition.
const TOLD_PARTS_MAX: usize = 256;
/// How long parts that join an alert wait for others before receivers are told of them: Alertmanager's `group_interval`.
const JOINED_EVERY: Duration = Duration::from_secs(300);
/// Silences at a time.
const SILENCES_MAX: usize = 1_000;

/// See the module [`super`].
#[derive(Clone, Debug, Default)]
pub struct Engine {
    rules: Vec<Rule>,
    pub(super) alerts: BTreeMap<(String, Subject), Alert>,
    /// Ended alerts, oldest first.
    pub(super) ended: Vec<Alert>,
    pub(super) silences: Vec<Silence>,
    pub(super) last_id: u64,
    left_out: usize,
}

/// What there is to see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Alerts: firing, then pending, then ended ones, the newest first. True if nobody is told of it now.
    pub alerts: Vec<(Alert, bool)>,
    /// Silences, the newest first.
    pub silences: Vec<Silence>,
    /// Alerts beyond the limit at the last evaluation.
    pub left_out: usize,
}

/// The parts of a subject that break a rule, and the worst value.
struct Broken<'r> {
    parts: Vec<&'r str>,
    worst: f64,
}

impl Engine {
    /// Returns an engine with these rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Engine {
        Engine { rules, ..Engine::default() }
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Replaces the rules. Alerts of rules that are gone end at the next evaluation.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.rules = rules;
    }

    /// Takes in what was measured now. A subject that isn't measured any more counts as clear.
    pub fn evaluate(&mut self, now: Timestamp, readings: &[Reading]) {
        self.silences.retain(|silence| silence.until > now);
        self.left_out = 0;
        let rules = std::mem::take(&mut self.rules);
        for rule in &rules {
            self.follow(now, rule, readings);
        }
        let is_known = |rule: &str| rules.iter().any(|other| other.name == rule);
        let gone: Vec<_> = self.alerts.keys().filter(|(rule, _)| !is_known(rule)).cloned().collect();
        for key in gone {
            self.end(now, &key);
        }
        self.rules = rules;
    }

    fn follow(&mut self, now: Timestamp, rule: &Rule, readings: &[Reading]) {
        let mut by_subject: BTreeMap<&Subject, Vec<&Reading>> = BTreeMap::new();
        for reading in readings.iter().filter(|reading| reading.measure == rule.measure) {
            by_subject.entry(&reading.subject).or_default().push(reading);
        }
        let mut broken: BTreeMap<&Subject, Broken<'_>> = BTreeMap::new();
        for (subject, readings) in by_subject {
            let alert = self.alerts.get(&(rule.name.clone(), subject.clone()));
            let is_firing = alert.is_some_and(|alert| alert.state == State::Firing);
            broken.extend(Broken::by(rule, &readings, is_firing).map(|broken| (subject, broken)));
        }
        let own: Vec<_> = self.alerts.keys().filter(|(name, _)| *name == rule.name).cloned().collect();
        for key in own.into_iter().filter(|(_, subject)| !broken.contains_key(subject)) {
            self.clear(now, rule, &key);
        }
        for (subject, broken) in broken {
            self.break_rule(now, rule, subject, &broken);
        }
    }

    /// An alert's rule isn't broken any more.
    fn clear(&mut self, now: Timestamp, rule: &Rule, key: &(String, Subject)) {
        let Some(alert) = self.alerts.get_mut(key) else { return };
        if alert.state == State::Pending {
            self.alerts.remove(key);
            return;
        }
        let since = *alert.clear_since.get_or_insert(now);
        if now.since(since) >= rule.clear_hold {
            self.end(now, key);
        }
    }

    fn end(&mut self, now: Timestamp, key: &(String, Subject)) {
        let Some(mut alert) = self.alerts.remove(key).filter(|alert| alert.state == State::Firing) else { return };
        (alert.state, alert.resolved_at) = (State::Resolved, Some(now));
        self.ended.push(alert);
        let surplus = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..surplus);
    }

    fn break_rule(&mut self, now: Timestamp, rule: &Rule, subject: &Subject, broken: &Broken<'_>) {
        let key = (rule.name.clone(), subject.clone());
        if !self.alerts.contains_key(&key) && self.alerts.len() >= ALERTS_MAX {
            self.left_out += 1;
            return;
        }
        let last_id = &mut self.last_id;
        let alert = self.alerts.entry(key).or_insert_with(|| {
            *last_id += 1;
            Alert::begin(*last_id, now, rule, subject)
        });
        alert.describe(rule, broken);
        alert.clear_since = None;
        if alert.state == State::Pending && now.since(alert.since) >= rule.hold {
            (alert.state, alert.fired_at) = (State::Firing, Some(now));
        }
    }

    /// Returns what receivers have to be told now, and notes that they were: alerts that began to fire, those that further parts have
    /// joined, those that still fire after `repeat` and that nobody has acknowledged, and ended ones whose beginning was told.
    pub fn news(&mut self, now: Timestamp, repeat: Duration) -> Vec<Alert> {
        let (silences, rules) = (&self.silences, &self.rules);
        let has_independent_parts =
            |name: &str| rules.iter().any(|rule| rule.name == name && rule.measure.has_independent_parts());
        let is_due = |alert: &Alert| match alert.told_at {
            _ if silences.iter().any(|silence| silence.covers(alert)) => false,
            None => true,
            Some(told_at) if alert.has_untold_parts() && has_independent_parts(&alert.rule) => {
                now.since(told_at) >= JOINED_EVERY
            }
            Some(told_at) => alert.acknowledged.is_none() && now.since(told_at) >= repeat,
        };
        let mut news = Vec::new();
        for alert in self.alerts.values_mut().filter(|alert| alert.state == State::Firing) {
            if is_due(alert) {
                alert.told_at = Some(now);
                alert.note_told_parts();
                news.push(alert.clone());
            }
        }
        for alert in self.ended.iter_mut().filter(|alert| alert.told_at.is_some()) {
            news.push(alert.clone());
            alert.told_at = None;
        }
        news
    }

    /// Returns the alerts that fire and aren't silenced.
    #[must_use]
    pub fn firing(&self) -> Vec<Alert> {
        let firing = self.alerts.values().filter(|alert| alert.state == State::Firing);
        firing.filter(|alert| !self.is_silenced(alert)).cloned().collect()
    }

    fn is_silenced(&self, alert: &Alert) -> bool {
        self.silences.iter().any(|silence| silence.covers(alert))
    }

    /// Returns everything as users see it.
    #[must_use]
    pub fn overview(&self) -> Overview {
        let of_state = |state: State| {
            let mut alerts: Vec<&Alert> = self.alerts.values().filter(|alert| alert.state == state).collect();
            alerts.sort_by_key(|alert| std::cmp::Reverse((alert.severity, alert.since, alert.id)));
            alerts
        };
        let alerts = of_state(State::Firing).into_iter().chain(of_state(State::Pending)).chain(self.ended.iter().rev());
        Overview {
            alerts: alerts.map(|alert| (alert.clone(), self.is_silenced(alert))).collect(),
            silences: self.silences.iter().rev().cloned().collect(),
            left_out: self.left_out,
        }
    }

    /// Notes that somebody takes care of an alert. Returns it, unless none of this number is pending or firing.
    pub fn acknowledge(&mut self, id: u64, by: &str, now: Timestamp) -> Option<Alert> {
        let alert = self.alerts.values_mut().find(|alert| alert.id == id)?;
        alert.acknowledged.get_or_insert((by.to_owned(), now));
        Some(alert.clone())
    }

    /// Silences alerts. Returns `None` if there are too many silences.
    pub fn silence(&mut self, wish: Wish, by: &str, now: Timestamp) -> Option<Silence> {
        if self.silences.len() >= SILENCES_MAX {
            return None;
        }
        self.last_id += 1;
        let Wish { rule, subject, until, comment } = wish;
        let silence = Silence { id: self.last_id, rule, subject, since: now, until, by: by.to_owned(), comment };
        self.silences.push(silence.clone());
        Some(silence)
    }

    /// Ends a silence. Returns whether there was one of this number.
    pub fn end_silence(&mut self, id: u64) -> bool {
        let before = self.silences.len();
        self.silences.retain(|silence| silence.id != id);
        self.silences.len() < before
    }
}

impl<'r> Broken<'r> {
    fn by(rule: &Rule, readings: &[&'r Reading], is_firing: bool) -> Option<Broken<'r>> {
        let mut broken: Option<Broken<'r>> = None;
        for reading in readings.iter().filter(|reading| rule.is_broken_by(reading.value, is_firing)) {
            let known = broken.get_or_insert(Broken { parts: Vec::new(), worst: reading.value });
            known.worst = rule.bound.worse(known.worst, reading.value);
            known.parts.extend(reading.part.as_deref());
        }
        broken
    }
}

impl Alert {
    fn begin(id: u64, now: Timestamp, rule: &Rule, subject: &Subject) -> Alert {
        Alert {
            id,
            rule: rule.name.clone(),
            subject: subject.clone(),
            severity: rule.severity,
            state: State::Pending,
            since: now,
            fired_at: None,
            clear_since: None,
            resolved_at: None,
            value: String::new(),
            parts: Vec::new(),
            more_parts: 0,
            summary: String::new(),
            hint: rule.hint.clone(),
            acknowledged: None,
            told_at: None,
            told_parts: BTreeSet::new(),
        }
    }

    /// Reports whether it has parts that receivers weren't told of.
    fn has_untold_parts(&self) -> bool {
        self.told_parts.len() < TOLD_PARTS_MAX && self.parts.iter().any(|part| !self.told_parts.contains(part))
    }

    fn note_told_parts(&mut self) {
        let room = TOLD_PARTS_MAX - self.told_parts.len();
        self.told_parts.extend(self.parts.iter().take(room).cloned());
    }

    /// Says what breaks the rule now.
    fn describe(&mut self, rule: &Rule, broken: &Broken<'_>) {
        self.severity = rule.severity;
        self.value = rule.measure.unit().show(broken.worst);
        self.parts = broken.parts.iter().take(PARTS_MAX).map(|part| (*part).to_owned()).collect();
        self.more_parts = broken.parts.len() - self.parts.len();
        let more = if self.more_parts > 0 { format!(" and {} more", self.more_parts) } else { String::new() };
        let parts = format!("{}{more}", self.parts.join(", "));
        let summary = rule.summary.replace("{value}", &self.value).replace("{subject}", &self.subject.to_string());
        self.summary = summary.replace("{parts}", &parts);
    }
}
