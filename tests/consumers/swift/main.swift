import Foundation

// LIBRARY, the first argument, is linked with.
let arguments = CommandLine.arguments
let misused = arguments.count == 4 && arguments[3] == "misuse"
guard arguments.count == 3 || misused else {
  FileHandle.standardError.write(Data("usage: program LIBRARY BUNDLE [misuse]\n".utf8))
  exit(2)
}
do {
  let bundle = arguments[2]
  FileHandle.standardOutput.write(
    try misused ? playMisuse(bundle: bundle) : Scenario().play(bundle: bundle))
} catch {
  FileHandle.standardError.write(Data("\(error)\n".utf8))
  exit(1)
}
