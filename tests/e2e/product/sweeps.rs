//! Sweeps and budgets with real trainers.

use crate::fixtures::gangline;
use crate::fixtures::product::{Product, SMALL};
use crate::fixtures::wait_for;

fn sweep(rates: &str, rules: &str, options: &str) -> String {
    format!(
        "name: lr\nsweep: {{parameters: {{RATE: [{rates}]}}, max_parallel: 1{rules}}}\n\
         run: exec '{}' tinygpt {SMALL} {options} --lr $RATE\ncheckpoint: {{grace: 5s}}\n",
        gangline().display()
    )
}

#[test]
fn a_learning_rate_that_learns_nothing_is_stopped_early() {
    let product = Product::up(&["a=cpu:2"]);
    let rules = ", early_stop: {min_steps: 20, reduction: 2}";
    let file = product.job_file("sweep.yaml", &sweep("3e-3, 1e-7", rules, "--steps 60 --step-time-min 50"));
    let ran = product.run(&["submit", "--wait", &file]);
    assert_eq!(ran.code, 0, "{}\n{}", ran.stdout, ran.stderr);
    let shown = product.json(&["show", "sweep-1"]);
    assert_eq!(
        (shown["points"][0]["state"].as_str(), shown["points"][1]["state"].as_str()),
        (Some("succeeded"), Some("stopped"))
    );
    assert_eq!(shown["points"][1]["parameters"][0]["value"], "1e-7");
    assert_eq!(shown["points"][1]["metric"]["step"], 20, "{shown:#}");
    let stopped = product.job("job-2");
    assert!(stopped["because"].as_str().is_some_and(|why| why.contains("the best 1 of 2 so far go on")), "{stopped:#}");
    assert!(stopped["progress"]["step"].as_u64() < Some(60), "{stopped:#}");
    let table = product.run(&["ps", "sweep-1"]);
    assert!(table.stdout.contains("1 succeeded, 1 stopped") && table.stdout.contains("RATE=1e-7"), "{}", table.stdout);
}

#[test]
fn a_sweep_is_cancelled_whole() {
    let product = Product::up(&["a=cpu:2"]);
    let file = product.job_file("sweep.yaml", &sweep("1e-3, 2e-3, 3e-3", "", "--steps 100000 --step-time-min 20"));
    let submitted = product.json(&["submit", &file]);
    assert_eq!(submitted["jobs"].as_array().map(Vec::len), Some(3), "{submitted:#}");
    let waits = product.json(&["explain", "job-3"]);
    assert_eq!(
        (waits["blocker"]["is"].as_str(), waits["blocker"]["sweep"].as_str()),
        (Some("parallel"), Some("sweep-1"))
    );
    product.wait_step("job-1", 1);
    let cancelled = product.run(&["cancel", "sweep-1"]);
    assert_eq!((cancelled.code, cancelled.stdout.lines().count()), (0, 3), "{}", cancelled.stderr);
    for job in ["job-1", "job-2", "job-3"] {
        product.wait_state(job, "cancelled");
    }
    assert_eq!(product.run(&["cancel", "sweep-1"]).code, 1);
    assert_eq!(product.run(&["show", "sweep-9"]).code, 3);
}

#[test]
fn a_budget_that_pays_for_no_start_is_refused_and_another_is_counted() {
    // A slot costs four cents an hour.
    let product = Product::up(&["a=cpu:1"]);
    let file = product.job_file("poor.yaml", "name: poor\nrun: sleep 60\nbudget: {usd: \"0.0001\"}\n");
    let refused = product.run(&["submit", &file]);
    assert!(refused.code == 4 && refused.stderr.contains("G0411"), "{}", refused.stderr);
    let job = product.submit("name: rich\nrun: sleep 1\nbudget: {usd: \"1\"}\n");
    let done = product.wait_state(&job, "succeeded");
    assert!(done["budget"]["spent_nano_dollars"].as_i64() > Some(10_000), "{done:#}");
    let text = product.run(&["show", &job]);
    assert!(text.stdout.contains("of $1.00 spent (estimated, by list prices)"), "{}", text.stdout);
}

fn is_over(product: &Product, job: &str) -> bool {
    product.json(&["explain", job])["blocker"]["is"] == "over_budget"
}

/// A budget that stops what runs has it save, keeps it waiting, and lets it go on once there is more money.
#[test]
fn once_a_budget_that_stops_jobs_is_spent_what_runs_saves_and_waits() {
    let budget = "[[budget]]\nname = \"tiny\"\nqueue = \"default\"\nusd = \"0.000001\"\nper = \"month\"\nwhen_spent = \"stop\"\n";
    let more = budget.replace("0.000001", "1000");
    let mut product = Product::down(&["a=cpu:1"]);
    let config = product.job_file("gangline.toml", budget);
    product.option("--config", &config);
    product.start();
    let job = product.submit(
        "name: trainer\nrun: |\n  trap 'touch saved; exit 94' TERM\n  test -e saved && exit 0\n  while :; do sleep 0.1; done\n",
    );
    wait_for("the budget to stop it", || {
        let stopped = product.job(&job);
        (stopped["state"] == "waiting" && is_over(&product, &job)).then_some(())
    });
    assert!(product.path("saved").exists());
    let told = product.job(&job)["attempts"][0]["ended_because"].to_string();
    assert!(told.contains("a budget for which it counts is spent"), "{told}");
    product.kill_control_plane();
    product.start();
    assert!(is_over(&product, &job), "a restart doesn't let it go on");
    product.job_file("gangline.toml", &more);
    assert_eq!(product.run(&["reload"]).stdout, "changed: budget\n");
    let ended = product.wait_state(&job, "succeeded");
    assert_eq!((ended["faults"].as_u64(), ended["attempts"].as_array().map(Vec::len)), (Some(0), Some(2)), "{ended:#}");
}

#[test]
fn once_a_budget_is_spent_no_job_of_it_begins_unless_it_is_released() {
    // A slot costs four cents an hour, so a job spends it in a tenth of a second. The whole bill's budget would be spent by the
    // idle slot before the first job comes.
    let budget = "[[budget]]\nname = \"tiny\"\nqueue = \"default\"\nusd = \"0.000001\"\nper = \"month\"\nwhen_spent = \"hold\"\n";
    let mut product = Product::down(&["a=cpu:1"]);
    let config = product.job_file("gangline.toml", budget);
    product.option("--config", &config);
    product.start();
    let first = product.submit("name: first\nrun: exec sleep 60\n");
    product.wait_state(&first, "running");
    let held = || {
        Some(product.json(&["cost", "budgets"])).filter(|list| list["budgets"][0]["spent_share"].as_f64() > Some(1.0))
    };
    wait_for("the budget to be spent", held);
    // The control plane looks every few seconds. A job that comes before still waits for the slot.
    let second = product.submit("name: second\nrun: exit 0\n");
    let third = product.submit("name: third\nrun: exit 0\n");
    wait_for("the budget to hold them", || (is_over(&product, &second) && is_over(&product, &third)).then_some(()));
    assert_eq!(product.job(&first)["state"], "running", "what has begun goes on");
    let explained = product.run(&["explain", &second]).stdout;
    assert!(explained.contains("the budget \"tiny\" of $0.00000100 is spent"), "{explained}");
    let file = product.job_file("fourth.yaml", "name: fourth\nrun: exit 0\n");
    let tried = product.run(&["submit", "--dry-run", &file]).stdout;
    assert!(tried.contains("the budget \"tiny\""), "{tried}");
    product.run(&["cancel", &first]);
    product.wait_state(&first, "cancelled");
    product.kill_control_plane();
    product.start();
    assert!(is_over(&product, &second) && product.job(&third)["attempts"].as_array().is_some_and(Vec::is_empty));
    assert_eq!(product.run(&["release", &third]).code, 0);
    product.wait_state(&third, "succeeded");
    assert!(is_over(&product, &second), "a release exempts one job");
    assert!(product.run(&["cost", "budgets"]).stdout.contains("hold"));
}
