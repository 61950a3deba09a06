//! Which environment variables of the control plane reach supervisors, and through them setup and ranks:
//! those that programs need to run at all, and none that may hold a secret of the user who started the
//! control plane, such as a cloud's keys. docs/reference/job-file.md lists them.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Names, and prefixes with a star.
const PASSED: [&str; 56] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH",
    "PYTHON*",
    "PYENV_*",
    "VIRTUAL_ENV",
    "CONDA_*",
    "MODULEPATH",
    "LOADEDMODULES",
    "LMOD_*",
    "CUDA_*",
    "NVIDIA_*",
    "NCCL_*",
    "RCCL_*",
    "HIP_*",
    "HSA_*",
    "ROCR_*",
    "UCX_*",
    "FI_*",
    "GLOO_*",
    "OMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_NUM_THREADS",
    "TORCH*",
    "PYTORCH_*",
    "TRITON_*",
    "JAX_*",
    "XLA_*",
    "HF_HOME",
    "SSL_CERT_*",
    "CONTAINERS_*",
    "STORAGE_DRIVER",
    "STORAGE_OPTS",
    "REGISTRY_AUTH_FILE",
    "APPTAINER_*",
    "ENROOT_*",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "GANGLINE_CONTAINERS",
    "RUST_BACKTRACE",
];
/// Variables for the supervisor only; ranks don't see them.
const OWN: [&str; 2] = ["GANGLINE_LOG", "GANGLINE_KERNEL_LOG"];
/// Variables for Slurm's programs; of these, ranks see those that tell where they run.
const SLURM: [&str; 8] =
    ["SLURM_*", "SBATCH_*", "SRUN_*", "SALLOC_*", "SCANCEL_*", "SQUEUE_*", "SINFO_*", "KRB5CCNAME"];
/// Maximum number of names and prefixes that a configuration may add.
const ADDED_MAX: usize = 256;

/// The variables that are passed on.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    added: Vec<String>,
}

impl Inherited {
    /// Returns the built-in variables and these: names, or prefixes with a star, such as `WANDB_*`.
    ///
    /// # Errors
    /// An entry that is invalid, and why.
    pub fn with(added: Vec<String>) -> Result<Inherited, String> {
        if added.len() > ADDED_MAX {
            return Err(format!("{} names are more than the {ADDED_MAX} there may be", added.len()));
        }
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_sound = |pattern: &String| {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            !pattern.is_empty() && name.chars().all(is_letter)
        };
        match added.iter().find(|pattern| !is_sound(pattern)) {
            Some(wrong) => Err(format!("\"{wrong}\" is neither a variable's name nor the beginning of one with a *")),
            None => Ok(Inherited { added }),
        }
    }

    /// Returns the part of an environment that is passed on to supervisors on this machine.
    #[must_use]
    pub fn of(&self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
        self.filtered(variables, &[])
    }

    /// Returns the part of an environment that is passed on to Slurm's programs, and by them to supervisors.
    #[must_use]
    pub fn of_slurm(&self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
        self.filtered(variables, &SLURM)
    }

    fn filtered(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        more: &[&str],
    ) -> BTreeMap<OsString, OsString> {
        let added = self.added.iter().map(String::as_str);
        let patterns: Vec<&str> = PASSED.iter().chain(&OWN).chain(more).copied().chain(added).collect();
        let is_passed = |name: &OsString| {
            let name = name.to_string_lossy();
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == *pattern,
            })
        };
        variables.into_iter().filter(|(name, _)| is_passed(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(inherited: &Inherited, names: &[&str]) -> Vec<String> {
        let variables = names.iter().map(|name| (OsString::from(name), OsString::from("x")));
        inherited.of(variables).into_keys().map(|name| name.to_string_lossy().into_owned()).collect()
    }

    const NAMES: [&str; 9] = [
        "AWS_SECRET_ACCESS_KEY",
        "GANGLINE_TOKEN",
        "HF_TOKEN",
        "HOMEBREW",
        "LC_ALL",
        "NCCL_DEBUG",
        "PATH",
        "SLURM_CONF",
        "WANDB_API_KEY",
    ];

    #[test]
    fn secrets_stay_behind_unless_the_configuration_names_them() {
        assert_eq!(passed(&Inherited::default(), &NAMES), ["LC_ALL", "NCCL_DEBUG", "PATH"]);
        let added = Inherited::with(vec!["WANDB_*".to_owned(), "HF_TOKEN".to_owned()]).expect("they are sound");
        assert_eq!(passed(&added, &NAMES), ["HF_TOKEN", "LC_ALL", "NCCL_DEBUG", "PATH", "WANDB_API_KEY"]);
        let all = Inherited::with(vec!["*".to_owned()]).expect("it is sound");
        assert_eq!(passed(&all, &NAMES), NAMES);
    }

    #[test]
    fn slurms_own_variables_reach_its_programs_only() {
        let variables = || ["SLURM_CONF", "SBATCH_ACCOUNT"].map(|name| (OsString::from(name), OsString::from("x")));
        assert_eq!(Inherited::default().of_slurm(variables()).len(), 2);
        assert!(Inherited::default().of(variables()).is_empty());
    }

    #[test]
    fn what_is_no_name_is_refused_by_it() {
        for wrong in ["", "A B", "A=1", "*_TOKEN", "A**"] {
            let refused = Inherited::with(vec![wrong.to_owned()]).expect_err("it is no name");
            assert!(refused.contains(&format!("\"{wrong}\"")), "{refused}");
        }
        assert!(Inherited::with(vec!["A".to_owned(); ADDED_MAX + 1]).is_err());
    }
}
