//! What of the control plane's environment reaches a job.

use crate::fixtures::product::Product;

#[test]
fn a_job_gets_what_programs_need_and_no_secret_that_the_configuration_does_not_name() {
    let mut product = Product::down(&["a=cpu:1"]);
    for name in ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NCCL_DEBUG"] {
        product.variable(name, "mine");
    }
    let config = product.path("gangline.toml");
    std::fs::write(&config, "inherit = ['WANDB_*']\n").expect("a configuration");
    product.option("--config", config.to_str().expect("temporary paths are text"));
    product.start();
    let seen = product.path("seen");
    let id = product.submit(&format!(
        "name: looks\nenvs: {{LR: 3e-4}}\nrun: env > {0}; cat /proc/$PPID/environ /proc/$(ps -o ppid= $PPID)/environ >> {0} || true\n",
        seen.display()
    ));
    product.wait_state(&id, "succeeded");
    let seen = std::fs::read(&seen).expect("it looked");
    let seen = String::from_utf8_lossy(&seen);
    assert!(!seen.contains("AWS_SECRET"), "neither rank nor shim nor supervisor has it: {seen}");
    for expected in ["WANDB_API_KEY=mine", "NCCL_DEBUG=mine", "LR=3e-4", "PATH="] {
        assert!(seen.contains(expected), "{expected} is there: {seen}");
    }
}
