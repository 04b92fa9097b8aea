// Names of properties that only our own code uses, for the bundler to shorten. A name is left alone if any of its
// uses is not surely ours: it belongs to the browser or to a message, is a key of a record, or stands in a string.
import ts from "typescript";

const OUTSIDE = /\/(protocol|index)\.ts$/;

export function ownNames(folder, sources) {
  const config = ts.readConfigFile(folder + "tsconfig.json", ts.sys.readFile).config;
  const { fileNames, options } = ts.parseJsonConfigFileContent({ ...config, include: [sources] }, ts.sys, folder);
  const program = ts.createProgram(fileNames, options);
  const checker = program.getTypeChecker();
  const ours = new Set(fileNames.filter((name) => !OUTSIDE.test(name)));
  const own = new Set();
  const foreign = new Set();

  const isOurs = (symbol) =>
    symbol?.declarations?.length > 0 && symbol.declarations.every((d) => ours.has(d.getSourceFile().fileName));
  const note = (name, symbol) => {
    (isOurs(symbol) ? own : foreign).add(name);
  };

  // A property of a literal is ours only if what the literal is for has a property of that name, and that is ours.
  function inLiteral(node, name) {
    const type = checker.getContextualType(node.parent);
    const parts = type?.isUnionOrIntersection() ? type.types : type ? [type] : [];
    const wanted = parts.map((part) => part.getProperty(name)).filter(Boolean);
    if (!wanted.length || parts.some((part) => checker.getIndexInfosOfType(part).length)) foreign.add(name);
    for (const symbol of wanted) note(name, symbol);
  }

  function visit(node) {
    if (ts.isStringLiteralLike(node)) foreign.add(node.text);
    else if (ts.isPropertyAccessExpression(node)) note(node.name.text, checker.getSymbolAtLocation(node.name));
    else if (ts.isPropertyAssignment(node) || ts.isShorthandPropertyAssignment(node) || ts.isMethodDeclaration(node)) {
      if (ts.isIdentifier(node.name)) {
        if (ts.isObjectLiteralExpression(node.parent)) inLiteral(node, node.name.text);
        else note(node.name.text, checker.getSymbolAtLocation(node.name));
      }
    } else if (ts.isBindingElement(node) && ts.isObjectBindingPattern(node.parent) && !node.dotDotDotToken) {
      const name = node.propertyName ?? node.name;
      if (ts.isIdentifier(name)) {
        const type = checker.getTypeAtLocation(node.parent);
        note(name.text, checker.getPropertyOfType(type, name.text));
      }
    } else if (ts.isClassElement(node) || ts.isPropertySignature(node) || ts.isMethodSignature(node)) {
      if (node.name && ts.isIdentifier(node.name)) note(node.name.text, checker.getSymbolAtLocation(node.name));
    }
    ts.forEachChild(node, visit);
  }

  for (const file of program.getSourceFiles()) {
    if (ours.has(file.fileName)) visit(file);
    else if (OUTSIDE.test(file.fileName) && fileNames.includes(file.fileName)) {
      const all = (node) => {
        if (ts.isIdentifier(node)) foreign.add(node.text);
        ts.forEachChild(node, all);
      };
      all(file);
    }
  }
  return [...own].filter((name) => !foreign.has(name) && !(name in Object.prototype)).sort();
}
