//! Tells the linker where `libelizainference` is: in `ELIZA_INFERENCE_LIB_DIR`, else where the
//! system keeps its libraries. At run time the dynamic linker has to find it as well.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ELIZA_INFERENCE_LIB_DIR");
    if let Ok(folder) = std::env::var("ELIZA_INFERENCE_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    }
}
